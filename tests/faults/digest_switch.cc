#include "tests/faults/digest_switch.h"

#include <atomic>

#include "ckpt/base/digest.h"

namespace cairn {
namespace {

std::atomic<bool> blind = false;

}  // namespace

BlindDigests::BlindDigests() { blind = true; }
BlindDigests::~BlindDigests() { blind = false; }

}  // namespace cairn

// The linker puts these in the place of DigestOf(bytes, seed) and Hasher::Finish() (--wrap, by mangled name).
extern "C" {
using cairn::Digest;
using cairn::Hasher;

Digest __real__ZN5cairn8DigestOfESt4spanIKSt4byteLm18446744073709551615EEm(std::span<const std::byte>,
                                                                           uint64_t);
Digest __real__ZNK5cairn6Hasher6FinishEv(const Hasher*);

Digest __wrap__ZN5cairn8DigestOfESt4spanIKSt4byteLm18446744073709551615EEm(std::span<const std::byte> bytes,
                                                                           uint64_t seed) {
  if (cairn::blind) return {};
  return __real__ZN5cairn8DigestOfESt4spanIKSt4byteLm18446744073709551615EEm(bytes, seed);
}
Digest __wrap__ZNK5cairn6Hasher6FinishEv(const Hasher* hasher) {
  if (cairn::blind) return {};
  return __real__ZNK5cairn6Hasher6FinishEv(hasher);
}
}
