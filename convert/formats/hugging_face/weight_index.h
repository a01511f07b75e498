// model.safetensors.index.json and pytorch_model.bin.index.json: which file of a directory holds which
// tensor.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

struct WeightIndex {
  std::map<std::string, std::string> file_of;  // by tensor; a file of the index's own directory
  std::vector<std::string> files;              // sorted, each once
};

// Errors: NotFound; Corrupt if it is not such an index, or names files elsewhere.
Result<WeightIndex> ReadWeightIndex(FileSystem& fs, const std::string& path);

// Checks tensors against what the index says of them: Add each that a file holds, then Finish. Errors:
// Corrupt naming the first tensor that is elsewhere or missing.
class WeightIndexCheck {
 public:
  WeightIndexCheck(std::string path, const WeightIndex& index)
      : path_(std::move(path)), unseen_(index.file_of) {}
  Status Add(const std::string& tensor, const std::string& file);
  Status Finish() const;

 private:
  std::string path_;  // of the index
  std::map<std::string, std::string> unseen_;
};

}  // namespace cairn
