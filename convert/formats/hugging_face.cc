#include "convert/formats/hugging_face.h"

#include "convert/formats/safetensors.h"
#include "convert/formats/torch.h"
#include "convert/formats/weight_index.h"
#include "convert/partial_dir.h"
#include "convert/stored_model.h"

namespace cairn {
namespace {

constexpr const char* kPickle = "pytorch_model.bin";
constexpr const char* kPickleIndex = "pytorch_model.bin.index.json";
constexpr const char* kPickles[] = {kPickle, kPickleIndex};
constexpr const char* kWeights[] = {"model.safetensors", "model.safetensors.index.json"};

bool HasAny(FileSystem& fs, const std::string& directory, std::span<const char* const> names) {
  for (const char* name : names)
    if (fs.Stat(JoinPath(directory, name)).ok()) return true;
  return false;
}

// The tensors of one file, which has this number in the list of files.
Status AddPickle(FileSystem& fs, const std::string& path, uint32_t number,
                 std::vector<ListedTensor>& tensors) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TorchTensor> found, ListTorchTensors(fs, path));
  for (const auto& [name, array, transposed] : found) {
    if (transposed || array.extents.size() > 1)
      return NotSupported("{}: tensor {} is a view that is not contiguous; save it with .contiguous()", path,
                          name);
    const uint64_t offset = array.extents.empty() ? 0 : array.extents[0].file_offset;
    tensors.push_back({name, std::string(Name(array.dtype)), array.dtype, array.shape, number, offset});
  }
  return OkStatus();
}

Result<std::unique_ptr<CheckpointSource>> OpenPickled(FileSystem& fs, const std::string& directory,
                                                      const OpenOptions& options) {
  std::vector<ListedTensor> tensors;
  if (fs.Stat(JoinPath(directory, kPickle)).ok()) {
    CAIRN_RETURN_IF_ERROR(AddPickle(fs, JoinPath(directory, kPickle), 0, tensors));
    return OpenStoredModel(fs, directory, {kPickle}, tensors, options);
  }
  const std::string path = JoinPath(directory, kPickleIndex);
  CAIRN_ASSIGN_OR_RETURN(WeightIndex index, ReadWeightIndex(fs, path));
  for (uint32_t i = 0; i < index.files.size(); ++i)
    CAIRN_RETURN_IF_ERROR(AddPickle(fs, JoinPath(directory, index.files[i]), i, tensors));
  WeightIndexCheck check(path, index);
  for (const ListedTensor& tensor : tensors)
    CAIRN_RETURN_IF_ERROR(check.Add(tensor.name, index.files[tensor.file]));
  CAIRN_RETURN_IF_ERROR(check.Finish());
  return OpenStoredModel(fs, directory, std::move(index.files), tensors, options);
}

}  // namespace

bool IsHuggingFace(FileSystem& fs, const std::string& path) {
  if (path.ends_with(".safetensors")) {
    const Result<FileInfo> info = fs.Stat(path);
    if (info.ok() && !info->is_directory) return fs.Stat(JoinPath(ParentDir(path), "config.json")).ok();
  }
  return fs.Stat(JoinPath(path, "config.json")).ok() &&
         (HasAny(fs, path, kWeights) || HasAny(fs, path, kPickles));
}

Result<std::unique_ptr<CheckpointSource>> OpenHuggingFace(FileSystem& fs, const std::string& path,
                                                          const OpenOptions& options) {
  if (!HasAny(fs, path, kWeights) && HasAny(fs, path, kPickles)) return OpenPickled(fs, path, options);
  CAIRN_ASSIGN_OR_RETURN(SafetensorsFiles files, ReadSafetensorsFiles(fs, path));
  const std::vector<ListedTensor> tensors = ListTensors(files);
  return OpenStoredModel(fs, files.directory, std::move(files.names), tensors, options);
}

}  // namespace cairn
