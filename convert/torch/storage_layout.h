// A container of storages, laid out before any of them is written: the zip of torch.save, or a safetensors
// file. It knows where each storage lies and, in the end, the bytes around the storages.
#pragma once

#include <string>
#include <vector>

#include "ckpt/base/digest.h"

namespace cairn {

// Bytes at their place in the container.
struct PlacedBytes {
  uint64_t offset = 0;
  std::string bytes;
};

// Known once all storages are written.
struct StorageSums {
  std::vector<uint32_t> crcs;     // CRC-32 of each storage; empty if the layout wants none
  Digest source{};                // fingerprint of the tensors that were read
  double quantization_error = 0;  // of those that were quantized, as |W - Q| / |W|
};

class StorageLayout {
 public:
  virtual ~StorageLayout() = default;

  virtual uint64_t bytes() const = 0;
  virtual size_t storage_count() const = 0;
  virtual uint64_t storage_offset(size_t storage) const = 0;  // in the container
  virtual uint64_t storage_bytes(size_t storage) const = 0;
  virtual bool wants_crcs() const = 0;
  // Everything but the storages' bytes, by offset.
  virtual std::vector<PlacedBytes> Around(const StorageSums& sums) const = 0;
};

}  // namespace cairn
