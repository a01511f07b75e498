#include "convert/formats/hugging_face.h"

#include "convert/formats/safetensors.h"
#include "convert/partial_dir.h"
#include "convert/stored_model.h"

namespace cairn {
namespace {

constexpr const char* kPickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
constexpr const char* kWeights[] = {"model.safetensors", "model.safetensors.index.json"};

bool HasAny(FileSystem& fs, const std::string& directory, std::span<const char* const> names) {
  for (const char* name : names)
    if (fs.Stat(JoinPath(directory, name)).ok()) return true;
  return false;
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
  if (!HasAny(fs, path, kWeights) && HasAny(fs, path, kPickles))
    return NotSupported(
        "{}: pytorch_model.bin is a Python pickle, which is not read here yet; save the model as "
        "safetensors (save_pretrained of transformers 4.35 or later)",
        path);
  CAIRN_ASSIGN_OR_RETURN(SafetensorsFiles files, ReadSafetensorsFiles(fs, path));
  const std::vector<ListedTensor> tensors = ListTensors(files);
  return OpenStoredModel(fs, files.directory, std::move(files.names), tensors, options);
}

}  // namespace cairn
