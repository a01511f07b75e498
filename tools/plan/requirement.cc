#include "tools/plan/requirement.h"

#include <fmt/ranges.h>
#include <muParser.h>

#include <cmath>
#include <vector>

namespace cairn {

struct Requirement::Parser {
  mu::Parser parser;
  Variables values;  // the parser points into it
};

Requirement::Requirement(std::string expression, std::unique_ptr<Parser> parser)
    : expression_(std::move(expression)), parser_(std::move(parser)) {}
Requirement::Requirement(Requirement&&) noexcept = default;
Requirement& Requirement::operator=(Requirement&&) noexcept = default;
Requirement::~Requirement() = default;

Result<Requirement> Requirement::Parse(const std::string& expression, const Variables& names) {
  auto parser = std::make_unique<Parser>();
  parser->values = names;
  try {
    parser->parser.DefineOprt(
        "%", [](double a, double b) { return std::fmod(a, b); }, mu::prMUL_DIV, mu::oaLEFT);
    for (auto& [name, value] : parser->values) parser->parser.DefineVar(name, &value);
    parser->parser.SetExpr(expression);
    parser->parser.Eval();
  } catch (const mu::Parser::exception_type& error) {
    std::vector<std::string> known;
    for (const auto& [name, value] : names) known.push_back(name);
    return InvalidArgument("'{}': {}; variables are {}", expression, error.GetMsg(), fmt::join(known, ", "));
  }
  return Requirement(expression, std::move(parser));
}

bool Requirement::Holds(const Variables& values) {
  for (auto& [name, value] : parser_->values) value = values.at(name);
  return parser_->parser.Eval() != 0;
}

}  // namespace cairn
