#include "convert/foreign/stored_target.h"

#include "ckpt/io/file_system.h"

namespace cairn {

uint64_t StoredTarget::bytes() const {
  uint64_t bytes = 0;
  for (const TargetFile& file : files) bytes += file.bytes;
  return bytes;
}

void PlaceZips(StoredTarget& target) {
  for (TargetZip& zip : target.zips) {
    uint64_t& bytes = target.files[zip.file].bytes;
    zip.offset = PageUp(bytes);
    bytes = zip.offset + zip.layout.bytes();
  }
}

}  // namespace cairn
