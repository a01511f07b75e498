// Each foreign tensor is an array, which fills one storage of one file. Its parts name parameters, which
// become the numbers of the written tensors.

#include "convert/formats/hugging_face/release_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "ckpt/base/sha256_sums.h"
#include "convert/formats/hugging_face/weight_files.h"

namespace cairn {
namespace {

std::string ShardFileName(size_t index, size_t count, bool adapter = false) {
  return count == 1 ? adapter ? kAdapterFile : kSafetensorsFile
                    : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

std::string WeightIndexText(const ForeignModel& model, const std::vector<std::vector<size_t>>& cut,
                            uint64_t total_bytes) {
  nlohmann::json index;
  uint64_t elements = 0;
  for (size_t file = 0; file < cut.size(); ++file)
    for (const size_t tensor : cut[file]) {
      index["weight_map"][model.tensors[tensor].name] = ShardFileName(file, cut.size());
      elements += model.tensors[tensor].shape.Volume();
    }
  index["metadata"] = {{"total_parameters", elements}, {"total_size", total_bytes}};
  return index.dump(2) + "\n";
}

}  // namespace

std::vector<std::vector<size_t>> CutIntoFiles(const std::vector<uint64_t>& tensor_bytes, uint64_t max_bytes) {
  std::vector<std::vector<size_t>> files(1);
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (!files.back().empty() && tensor_bytes[i] > max_bytes - std::min(bytes, max_bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += tensor_bytes[i];
  }
  return files;
}

Result<StoredTarget> PlanRelease(const ForeignModel& model, std::vector<WrittenTensor> weights,
                                 uint64_t max_file_bytes, const FileCopies& copies) {
  std::unordered_map<std::string_view, uint32_t> numbers;  // of the weights, by name
  for (uint32_t i = 0; i < weights.size(); ++i) numbers.emplace(weights[i].entry.spec.name, i);
  const auto dtype_of = [&](const ForeignTensor& tensor) {
    return weights[numbers.at(tensor.parts[0].parameter)].entry.dtype;
  };
  std::vector<uint64_t> sizes;
  for (const ForeignTensor& tensor : model.tensors)
    sizes.push_back(tensor.shape.Volume() * SizeOf(dtype_of(tensor)));
  const std::vector<std::vector<size_t>> cut = CutIntoFiles(sizes, max_file_bytes);
  StoredTarget target;
  for (size_t file = 0; file < cut.size(); ++file) {
    std::vector<StoredArray> entries;
    for (const size_t index : cut[file]) {
      const ForeignTensor& tensor = model.tensors[index];
      const Dtype dtype = dtype_of(tensor);
      const auto array = static_cast<uint32_t>(target.arrays.size());
      for (const ForeignPart& part : tensor.parts) {
        target.parts.push_back({part, numbers.at(part.parameter), array});
        if (tensor.seen.rank() > 0) target.by_turns[array].push_back(target.parts.back().tensor);
      }
      const auto storage = static_cast<uint32_t>(target.storages.size());
      target.arrays.push_back(
          {tensor.name, dtype, tensor.seen_shape(), {{{0, tensor.shape.Volume()}, storage, 0}}});
      target.storages.push_back({static_cast<uint32_t>(file), static_cast<uint32_t>(entries.size())});
      entries.push_back({tensor.name, dtype, tensor.shape});
    }
    CAIRN_ASSIGN_OR_RETURN(auto layout, MakeSafetensorsStorages(std::move(entries), model.metadata));
    target.files.push_back({.name = ShardFileName(file, cut.size(), copies.contains(kAdapterConfig))});
    target.containers.push_back({static_cast<uint32_t>(file), 0, std::move(layout)});
  }
  PlaceContainers(target);
  const auto add_text = [&](const std::string& name, const std::string& text) {
    target.files.push_back({.name = name, .bytes = text.size(), .text = text});
  };
  uint64_t total_bytes = 0;
  for (const uint64_t bytes : sizes) total_bytes += bytes;
  if (cut.size() > 1) add_text("model.safetensors.index.json", WeightIndexText(model, cut, total_bytes));
  for (const auto& [name, text] : model.files)
    if (!copies.contains(name)) add_text(name, text);
  for (const auto& [name, from] : copies) {
    if (name == kSha256SumsName || std::ranges::count(target.files, name, &TargetFile::name) > 0)
      return InvalidArgument("{}: {} is written here by Cairn itself; leave it out, or rename it", from.path,
                             name);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, from.fs->Stat(from.path));
    target.files.push_back({.name = name, .bytes = info.bytes, .copy = from});
  }
  target.tensors = std::move(weights);
  return target;
}

}  // namespace cairn
