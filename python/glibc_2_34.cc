// A function that libstdc++ needs from a glibc newer than 2.34: with it a portable program runs on 2.34.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

// glibc has it since 2.36; std::random_device calls it.
extern "C" uint32_t arc4random() noexcept {
  uint32_t number;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) std::abort();
  return number;
}
