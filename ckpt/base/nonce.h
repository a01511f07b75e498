// Random words that tell apart what several processes make at the same time.
#pragma once

#include <cstddef>
#include <string>

namespace cairn {

inline constexpr size_t kNonceDigits = 8;
// As many hexadecimal digits.
std::string NewNonce();

}  // namespace cairn
