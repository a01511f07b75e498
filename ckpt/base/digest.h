// XXH3-128 digests that bind bytes to what they are: run, step, tensor, role, dtype, box and place in the
// piece.
//
// They catch damage, truncation, and shards that are whole but stale, swapped or foreign. They are not
// signatures: anyone who can write the files can forge them. FORMAT.md, "Digests".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

inline constexpr uint64_t kChunkBytes = 4 << 20;  // one digest covers at most this many bytes of a piece

using Digest = std::array<std::byte, 16>;  // canonical (big-endian) XXH3-128

std::string ToHex(const Digest& digest);
std::optional<Digest> ParseHex(std::string_view hex);
// True for lower-case hex digits only, and at least one.
bool IsHex(std::string_view text);

Digest DigestOf(std::span<const std::byte> bytes, uint64_t seed = 0);
inline Digest DigestOf(std::string_view bytes) { return DigestOf(std::as_bytes(std::span(bytes))); }

// A digest of bytes that come one after the other.
class Hasher {
 public:
  explicit Hasher(uint64_t seed = 0);
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();
  void Update(std::span<const std::byte> bytes);
  void Reset(uint64_t seed);
  Digest Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// XXH3-64.
uint64_t Hash64(std::string_view text);

inline uint64_t ChunkCount(uint64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

}  // namespace cairn
