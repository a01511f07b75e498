// Time that has passed, and time to wait.
#pragma once

#include <chrono>
#include <functional>

namespace cairn {

// How long to wait; called repeatedly, because it may change.
using Patience = std::function<std::chrono::seconds()>;

// Seconds since construction.
class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace cairn
