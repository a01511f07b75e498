// Whether this is a sanitizer's build, which is 10 to 50 times slower: tests of many rounds then make fewer.
#pragma once

namespace cairn {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace cairn
