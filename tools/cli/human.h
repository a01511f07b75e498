// Sizes, counts and times as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// "1.50 GB", "12 B": decimal units, three digits.
std::string HumanBytes(double bytes);
inline std::string HumanBytes(uint64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }
// The same; "-" for none.
inline std::string HumanBytesOrDash(uint64_t bytes) { return bytes == 0 ? "-" : HumanBytes(bytes); }
// "1 tensor", "2 tensors"
std::string Counted(uint64_t count, std::string_view one);
// "45 s", "3 min 20 s", "2 h 5 min"
std::string HumanSeconds(double seconds);
// "2026-11-23 01:05", local time; "-" for 0
std::string DateText(int64_t unix_seconds);

}  // namespace cairn
