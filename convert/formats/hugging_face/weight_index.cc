#include "convert/formats/hugging_face/weight_index.h"

#include <set>

#include "ckpt/io/strict_json.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxIndexBytes = 256 << 20;

}  // namespace

Result<WeightIndex> ReadWeightIndex(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonObject(fs, path, kMaxIndexBytes));
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object()) return Corrupt("{}: it has no weight_map", path);
  WeightIndex index;
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get<std::string>()))
      return Corrupt("{}: tensor {} is in {}, which is not a file of this directory", path, tensor,
                     file.dump());
    files.insert(index.file_of[tensor] = file.get<std::string>());
  }
  if (files.empty()) return Corrupt("{}: its weight_map names no tensor", path);
  index.files.assign(files.begin(), files.end());
  return index;
}

Status WeightIndexCheck::Add(const std::string& tensor, const std::string& file) {
  const auto found = unseen_.find(tensor);
  if (found == unseen_.end() || found->second != file)
    return Corrupt("{}: tensor {} is in {}, which the index does not say", path_, tensor, file);
  unseen_.erase(found);
  return OkStatus();
}

Status WeightIndexCheck::Finish() const {
  if (unseen_.empty()) return OkStatus();
  return Corrupt("{}: tensor {} should be in {} and is not", path_, unseen_.begin()->first,
                 unseen_.begin()->second);
}

}  // namespace cairn
