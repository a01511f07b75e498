#include "ckpt/model/tensor_glob.h"

#include "ckpt/base/glob.h"

namespace cairn {

bool FitsGlob(const TensorEntry& tensor, const std::string& glob) {
  return FitsGlob(DisplayName(tensor), glob) || FitsGlob(tensor.spec.name, glob);
}

}  // namespace cairn
