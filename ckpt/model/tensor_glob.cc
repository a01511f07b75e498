#include "ckpt/model/tensor_glob.h"

#include <fnmatch.h>

namespace cairn {

bool FitsGlob(const TensorEntry& tensor, const std::string& glob) {
  return ::fnmatch(glob.c_str(), DisplayName(tensor).c_str(), 0) == 0 ||
         ::fnmatch(glob.c_str(), tensor.spec.name.c_str(), 0) == 0;
}

}  // namespace cairn
