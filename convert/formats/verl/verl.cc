#include "convert/formats/verl/verl.h"

#include <algorithm>
#include <map>

#include "convert/foreign/file_sets.h"
#include "convert/formats/torch/torch.h"

namespace cairn {
namespace {

constexpr const char* kModel =
    "model";  // the first word of a file with weights; others are optim, extra_state

// "model_world_size_2_rank_0.pt".
std::string NameOf(const std::string& kind, int world, int rank) {
  return fmt::format("{}_world_size_{}_rank_{}.pt", kind, world, rank);
}

// The ranks that have a file, by kind and size of the world.
std::map<std::pair<std::string, int>, std::set<int>> RanksIn(const std::vector<std::string>& names) {
  std::map<std::pair<std::string, int>, std::set<int>> ranks;
  for (const std::string& name : names)
    if (std::vector<std::string> v; FitsPattern("*_world_size_#_rank_#.pt", name, v))
      ranks[{v[0], std::stoi(v[1])}].insert(std::stoi(v[2]));
  return ranks;
}

std::string WhatToDo(FileSystem& fs, const std::string& path) {
  const std::string model = JoinPath(path, "huggingface");
  const auto names = fs.List(model);
  const bool whole = names.ok() && std::ranges::any_of(*names, [](const std::string& name) {
                       return name.ends_with(".safetensors");
                     });
  return whole ? fmt::format("its Hugging Face model is next to it: cairn inspect {}", model)
               : "python -m verl.model_merger merge makes a Hugging Face model of it";
}

}  // namespace

bool MatchesVerl(FileSystem& fs, const std::string& path) {
  const auto names = fs.List(path);
  return names.ok() &&
         std::ranges::any_of(RanksIn(*names), [](const auto& set) { return set.first.first == kModel; });
}

Result<std::unique_ptr<ForeignSource>> OpenVerl(FileSystem& fs, const std::string& path,
                                                ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  for (const auto& [set, ranks] : RanksIn(names))
    if (set.first == kModel && set.second != 1)
      return NotSupported(
          "{}: {} has a format that Cairn does not read: verl's, one file of DTensors per rank; {}", path,
          NameOf(kModel, set.second, *ranks.begin()), WhatToDo(fs, path));
  return OpenTorch(fs, JoinPath(path, NameOf(kModel, 1, 0)), options);
}

Status CheckVerlFiles(FileSystem& /*fs*/, const std::string& directory,
                      const std::vector<std::string>& names) {
  for (const auto& [set, ranks] : RanksIn(names))
    for (int rank = 0; rank < set.second; ++rank)
      if (!ranks.contains(rank))
        return NotFound("{}: is missing, but others of its kind exist",
                        JoinPath(directory, NameOf(set.first, set.second, rank)));
  return OkStatus();
}

}  // namespace cairn
