#include "convert/foreign/stored_target.h"

#include "ckpt/io/file_system.h"

namespace cairn {

uint64_t StoredTarget::bytes() const {
  uint64_t bytes = 0;
  for (const TargetFile& file : files) bytes += file.bytes;
  return bytes;
}

void PlaceContainers(StoredTarget& target) {
  for (TargetContainer& container : target.containers) {
    uint64_t& bytes = target.files[container.file].bytes;
    container.offset = PageUp(bytes);
    bytes = container.offset + container.layout->bytes();
  }
}

}  // namespace cairn
