// Prints a line only the first time, not at every save.
#pragma once

#include <set>
#include <string>

#include "ckpt/base/status.h"
#include "runtime/control/console.h"

namespace cairn {

// Belongs to one thread.
class SaidOnce {
 public:
  explicit SaidOnce(std::string prefix) : prefix_(std::move(prefix)) {}
  void Add(const Status& status) {
    if (said_.insert(status.message()).second) Say(prefix_ + status.message());
  }

 private:
  const std::string prefix_;
  std::set<std::string> said_;
};

}  // namespace cairn
