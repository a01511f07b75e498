#include "ckpt/base/digest.h"

#define XXH_STATIC_LINKING_ONLY  // for the size of a state
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h>  // AVX2 and AVX-512 where the processor has them
#endif

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <new>

namespace cairn {
namespace {

Digest Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest;
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

}  // namespace

std::string ToHex(const Digest& digest) {
  std::string hex;
  for (std::byte b : digest) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  return hex;
}

bool IsHex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == text.npos;
}

std::optional<Digest> ParseHex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.size() || !IsHex(hex)) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    uint8_t byte = 0;
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, byte, 16);
    digest[i] = std::byte{byte};
  }
  return digest;
}

Digest DigestOf(std::span<const std::byte> bytes, uint64_t seed) {
  return Canonical(XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed));
}

struct Hasher::State {
  XXH3_state_t xxh;  // over-aligned: allocated with its own alignment by C++17's new
};

Hasher::Hasher(uint64_t seed) : state_(new State) { Reset(seed); }
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;
void Hasher::Reset(uint64_t seed) {
  XXH3_INITSTATE(&state_->xxh);
  XXH3_128bits_reset_withSeed(&state_->xxh, seed);
}
void Hasher::Update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}
Digest Hasher::Finish() const { return Canonical(XXH3_128bits_digest(&state_->xxh)); }

uint64_t Hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace cairn
