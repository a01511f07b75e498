// True in a build with a sanitizer, which is 10 to 50 times slower: long tests then run fewer rounds.
#pragma once

namespace cairn {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace cairn
