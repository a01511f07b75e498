#include "ckpt/base/box_map.h"

namespace cairn {

Box BoxMap::ToArray(const Box& part) const {
  Box found = transpose ? Transposed(part) : part;
  const Box origin = transpose ? Transposed(box) : box;
  for (int i = 0; i < found.rank(); ++i)
    found.offset[i] = found.offset[i] - origin.offset[i] + in_array.offset[i];
  return found;
}

bool BoxMap::Fits(const Dims& tensor, const Dims& array) const {
  return box.rank() == tensor.rank() && in_array.rank() == array.rank() && box.rank() == in_array.rank() &&
         (!transpose || box.rank() == 2) && Contains(Box::Whole(tensor), box) &&
         Contains(Box::Whole(array), in_array) &&
         (transpose ? Transposed(box) : box).extent == in_array.extent;
}

}  // namespace cairn
