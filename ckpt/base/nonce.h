// Random words that tell apart what several processes make at the same time.
#pragma once

#include <string>

namespace cairn {

// Eight hexadecimal digits.
std::string NewNonce();

}  // namespace cairn
