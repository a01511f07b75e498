// What this machine's libstdc++ takes from a glibc newer than 2.34, so that a portable program runs there.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

// From glibc 2.36, for std::random_device.
extern "C" uint32_t arc4random() noexcept {
  uint32_t number;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) std::abort();
  return number;
}
