#include "convert/foreign/stored_array.h"

#include <algorithm>

namespace cairn {

uint64_t StoredArray::elements() const {
  uint64_t count = 0;
  for (const StoredExtent& extent : extents) count += extent.range.size();
  return count;
}

StoredArray StretchOf(const StoredArray& array, uint64_t begin, const Dims& shape) {
  StoredArray slice{array.name, array.dtype, shape};
  const uint64_t end = begin + shape.Volume(), size = SizeOf(array.dtype);
  // Found by bisection, since a flat vector may have an extent for each of many ranks.
  auto extent =
      std::ranges::upper_bound(array.extents, begin, {}, [](const StoredExtent& e) { return e.range.end; });
  for (; begin < end && extent != array.extents.end() && extent->range.begin < end; ++extent) {
    const uint64_t from = std::max(begin, extent->range.begin), to = std::min(end, extent->range.end);
    slice.extents.push_back({{from - begin, to - begin},
                             extent->file,
                             extent->file_offset + (from - extent->range.begin) * size});
  }
  return slice;
}

void Append(StoredArray& array, const StoredArray& next, uint64_t begin) {
  for (StoredExtent extent : next.extents) {
    extent.range = {extent.range.begin + begin, extent.range.end + begin};
    array.extents.push_back(extent);
  }
}

}  // namespace cairn
