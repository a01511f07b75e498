#include "convert/foreign/stored_target.h"

#include "ckpt/io/file_system.h"

namespace cairn {

uint64_t StoredTarget::bytes() const {
  uint64_t bytes = 0;
  for (const TargetFile& file : files) bytes += file.bytes;
  return bytes;
}

RegionList StoredTarget::Wanted() const {
  std::vector<Region> regions;
  for (const ArrayPart& part : parts) {
    const std::vector<StoredExtent>& extents = arrays[part.array].extents;
    if (extents.empty()) continue;
    const uint32_t file = containers[storages[extents[0].file].container].file;
    regions.push_back(Region::Whole(tensors[part.tensor].source, file, part.box));
  }
  return RegionList(std::move(regions));
}

void PlaceContainers(StoredTarget& target) {
  for (TargetContainer& container : target.containers) {
    uint64_t& bytes = target.files[container.file].bytes;
    container.offset = PageUp(bytes);
    bytes = container.offset + container.layout->bytes();
  }
}

}  // namespace cairn
