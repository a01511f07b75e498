#include "runtime/data/encode_index.h"

#include "ckpt/base/byte_codec.h"

namespace cairn {

std::string EncodeIndex(TokenType type, std::span<const int32_t> lengths) {
  ByteWriter index;
  const uint64_t count = lengths.size();
  index.PutRaw(kIndexMagic);
  index.Put(kIndexVersion);
  index.Put(static_cast<uint8_t>(type));
  index.Put(count);
  index.Put(count + 1);
  for (const int32_t length : lengths) index.Put(length);
  int64_t pointer = 0;
  for (const int32_t length : lengths) {
    index.Put(pointer);
    pointer += length * static_cast<int64_t>(SizeOf(type));
  }
  for (uint64_t k = 0; k <= count; ++k) index.Put(k);
  return std::move(index).Take();
}

}  // namespace cairn
