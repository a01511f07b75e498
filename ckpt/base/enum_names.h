// The names of an enum's values in their order, one for each: the compiler counts them.
#pragma once

#include <cstddef>
#include <string_view>

namespace cairn {

// NameIn<Scheduler::kCron>({"slurm", "systemd", "cron"}, scheduler)
template <auto last, size_t count>
constexpr std::string_view NameIn(const std::string_view (&names)[count], decltype(last) value) {
  static_assert(count == static_cast<size_t>(last) + 1);
  return names[static_cast<size_t>(value)];
}

}  // namespace cairn
