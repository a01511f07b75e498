// A condition on plans, as the user writes it: "dp % 4 == 0 && mem_gb < 70" (parsed by muParser).
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ckpt/base/status.h"

namespace cairn {

using Variables = std::map<std::string, double>;

class Requirement {
 public:
  // `names` are the variables that may be used. Operators are C's, % is the remainder.
  // Errors: InvalidArgument naming the expression, what is wrong with it, and the variables.
  static Result<Requirement> Parse(const std::string& expression, const Variables& names);
  Requirement(Requirement&&) noexcept;
  Requirement& operator=(Requirement&&) noexcept;
  ~Requirement();

  // Requires a value for each name of Parse.
  bool Holds(const Variables& values);
  const std::string& expression() const { return expression_; }

 private:
  struct Parser;
  Requirement(std::string expression, std::unique_ptr<Parser> parser);
  std::string expression_;
  std::unique_ptr<Parser> parser_;
};

}  // namespace cairn
