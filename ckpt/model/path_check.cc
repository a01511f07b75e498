#include "ckpt/model/path_check.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ckpt/model/layout.h"

namespace cairn {
namespace {

// The path as HDF5 reads it: without parts that are empty or a dot. Empty if the last part is one of these.
std::string PlainPath(std::string_view path) {
  std::string plain;
  for (size_t begin = 1, end = 0; end != path.npos; begin = end + 1) {
    end = path.find('/', begin);
    const std::string_view part = path.substr(begin, end == path.npos ? end : end - begin);
    if (!part.empty() && part != ".")
      plain.append("/").append(part);
    else if (end == path.npos)
      return {};
  }
  return plain;
}

}  // namespace

Status CheckPaths(std::span<const TensorEntry> tensors) {
  std::unordered_map<std::string, const TensorEntry*> datasets;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.spec.name.size() > UINT16_MAX)
      return InvalidArgument("tensor {}…: its name has {} bytes, but a step holds at most {}; rename it",
                             tensor.spec.name.substr(0, 40), tensor.spec.name.size(), UINT16_MAX);
    const std::string path = PlainPath(TensorPath(tensor));
    if (path.empty())
      return InvalidArgument(
          "tensor {}: HDF5 cannot hold a name that ends in an empty part or a dot; rename it",
          DisplayName(tensor));
    const auto [other, added] = datasets.emplace(path, &tensor);
    if (!added)
      return InvalidArgument("tensors {} and {} would both be {} of the step; rename one",
                             DisplayName(*other->second), DisplayName(tensor), path);
  }
  for (const TensorEntry& tensor : tensors) {
    const std::string path = PlainPath(TensorPath(tensor));
    for (size_t slash = path.rfind('/'); slash > 0; slash = path.rfind('/', slash - 1))
      if (const auto other = datasets.find(path.substr(0, slash)); other != datasets.end())
        return InvalidArgument(
            "tensors {} and {} cannot be in one step: the part before a slash is a group of HDF5; rename one",
            DisplayName(*other->second), DisplayName(tensor));
  }
  return OkStatus();
}

}  // namespace cairn
