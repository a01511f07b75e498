#include "runtime/data/encode_dataset.h"

#include "ckpt/base/byte_codec.h"

namespace cairn {

DatasetFiles EncodeDataset(TokenType type, const std::vector<std::vector<int32_t>>& documents) {
  ByteWriter tokens, index;
  const uint64_t count = documents.size();
  index.PutRaw(kIndexMagic);
  index.Put(kIndexVersion);
  index.Put(static_cast<uint8_t>(type));
  index.Put(count);
  index.Put(count + 1);
  for (const auto& document : documents) index.Put(static_cast<int32_t>(document.size()));
  int64_t pointer = 0;
  for (const auto& document : documents) {
    index.Put(pointer);
    pointer += static_cast<int64_t>(document.size() * SizeOf(type));
    for (const int32_t token : document)
      WithTokenOf(type, [&]<typename T>(T) { tokens.Put(static_cast<T>(token)); });
  }
  for (uint64_t k = 0; k <= count; ++k) index.Put(k);
  return {std::move(tokens).Take(), std::move(index).Take()};
}

}  // namespace cairn
