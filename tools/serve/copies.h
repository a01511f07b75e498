// Whether ranks that count as holders of the same tensors have the same values. Only one of them writes each
// tensor, so experts of several ranks under one name would be lost without an error.
//
// A rank sends digests of some elements: {group: {part of a tensor: digest}}. A group is one set of ranks;
// its name begins with "given-" if the training named these ranks by `replicas`. Each group is a file of the
// team whose name has the digest of its content, so rank 0 reads files only if ranks differ.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

class Copies {
 public:
  using ReadFile = std::function<Result<std::string>(const std::string& name)>;

  // Adds the files of rank `rank`, {group: name of the file}; call in order of ranks. Errors: InvalidArgument
  // naming a tensor and two ranks whose values differ, unless the group is given.
  Status Add(int rank, const nlohmann::json& files, const ReadFile& read);
  // In given groups, one line each: "ranks 0 and 3 differ in w; ...".
  const std::vector<std::string>& differences() const { return differences_; }

 private:
  std::map<std::string, std::pair<int, std::string>> first_;  // of each group: the rank and its file
  std::vector<std::string> differences_;
};

}  // namespace cairn
