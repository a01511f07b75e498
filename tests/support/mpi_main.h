// main() of a test that all ranks of a job run: prints what failed and where, and stops the other ranks
// too.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

#include "runtime/comm/launch.h"
#include "runtime/control/watchdog.h"

namespace cairn {

inline std::string ErrorText(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error ? c10_error->what_without_backtrace() : error.what();
}

// A barrier: returns once all ranks of the group have called it.
inline void Meet(const ProcessGroup& group, std::string_view what) {
  at::Tensor sum = at::zeros({1});
  group.AllReduceSum(sum, what);
}

// Launches and runs `body(transport)`; the exit status.
template <typename Body>
int MpiMain(const LaunchOptions& options, const Body& body) {
  try {
    auto transport = Launch(options);
    body(*transport);
    if (transport->rank() == 0) std::puts("all ranks agree");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", ErrorText(error).c_str());
    Watchdog::StopAllRanks(1);
  }
}

}  // namespace cairn
