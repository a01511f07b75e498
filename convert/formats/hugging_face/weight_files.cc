#include "convert/formats/hugging_face/weight_files.h"

#include <set>

#include "ckpt/step/partial_dir.h"
#include "convert/foreign/file_sets.h"
#include "convert/formats/hugging_face/safetensors_header.h"
#include "convert/formats/hugging_face/weight_index.h"
#include "convert/formats/torch/torch.h"

namespace cairn {
namespace {

using ReadFile = Status (*)(FileSystem& fs, WeightFiles& files, uint32_t file);

Status AddSafetensors(FileSystem& fs, WeightFiles& files, uint32_t file) {
  CAIRN_ASSIGN_OR_RETURN(SafetensorsHeader header,
                         ReadSafetensorsHeader(fs, JoinPath(files.directory, files.names[file])));
  for (StoredArray& tensor : header.tensors) {
    StoredExtent& extent = tensor.extents[0];
    extent.file = file;
    files.account.AddStorage(files.names[file], tensor.name, extent.file_offset, tensor.bytes());
    files.tensors.push_back(std::move(tensor));
  }
  if (file == 0) files.metadata = std::move(header.metadata);
  return OkStatus();
}

Status AddPickled(FileSystem& fs, WeightFiles& files, uint32_t file) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredArray> tensors,
                         ListTorchTensors(fs, files.directory, files.names[file], files.account));
  for (StoredArray& tensor : tensors) {
    for (StoredExtent& extent : tensor.extents) extent.file = file;
    files.tensors.push_back(std::move(tensor));
  }
  return OkStatus();
}

Result<WeightFiles> ReadIndexed(FileSystem& fs, const std::string& directory, const std::string& name,
                                ReadFile read) {
  const std::string path = JoinPath(directory, name);
  CAIRN_ASSIGN_OR_RETURN(const WeightIndex index, ReadWeightIndex(fs, path));
  WeightFiles files{directory, index.files, {}, {}, {}};
  WeightIndexCheck check(path, index);
  for (uint32_t file = 0; file < files.names.size(); ++file) {
    const size_t first = files.tensors.size();
    CAIRN_RETURN_IF_ERROR(read(fs, files, file));
    for (size_t i = first; i < files.tensors.size(); ++i)
      CAIRN_RETURN_IF_ERROR(check.Add(files.tensors[i].name, files.names[file]));
  }
  CAIRN_RETURN_IF_ERROR(check.Finish());
  return files;
}

Result<WeightFiles> ReadFiles(FileSystem& fs, const std::string& path, const char* one, const char* index,
                              ReadFile read) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (info.is_directory() && !fs.Stat(JoinPath(path, one)).ok()) return ReadIndexed(fs, path, index, read);
  WeightFiles files{info.is_directory() ? path : ParentDir(path), {}, {}, {}, {}};
  files.names = {info.is_directory() ? one : path.substr(path.find_last_of('/') + 1)};
  CAIRN_RETURN_IF_ERROR(read(fs, files, 0));
  return files;
}

// "model-00002-of-00005.safetensors": if one is there, all must be.
Status CheckShards(const std::string& directory, const std::vector<std::string>& names) {
  std::map<std::vector<std::string>, std::set<std::string>> shards;  // by the rest of the name
  for (const std::string& name : names)
    if (std::vector<std::string> v; FitsPattern("*-#-of-#*", name, v))
      shards[{v[0], v[2], v[3]}].insert(v[1]);
  for (const auto& [rest, found] : shards)
    if (const size_t count = std::stoul(rest[1]); found.size() < count)
      return NotFound("{}/{}-N-of-{}{}: only {} of {} such files are there", directory, rest[0], rest[1],
                      rest[2], found.size(), count);
  return OkStatus();
}

}  // namespace

Result<WeightFiles> ReadSafetensorsFiles(FileSystem& fs, const std::string& path) {
  const bool adapter = !fs.Stat(JoinPath(path, kSafetensorsFile)).ok() &&
                       !fs.Stat(JoinPath(path, kSafetensorsIndex)).ok() &&
                       fs.Stat(JoinPath(path, kAdapterFile)).ok();
  return ReadFiles(fs, path, adapter ? kAdapterFile : kSafetensorsFile, kSafetensorsIndex, AddSafetensors);
}

Result<WeightFiles> ReadPickledFiles(FileSystem& fs, const std::string& path) {
  return ReadFiles(fs, path, kPickleFile, kPickleIndex, AddPickled);
}

Status CheckWeightFiles(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names) {
  CAIRN_RETURN_IF_ERROR(CheckShards(directory, names));
  for (const std::string& name : names) {
    if (name.ends_with(".bin.index.json"))
      CAIRN_RETURN_IF_ERROR(ReadIndexed(fs, directory, name, AddPickled).status());
    if (name.ends_with(".safetensors.index.json"))
      CAIRN_RETURN_IF_ERROR(ReadIndexed(fs, directory, name, AddSafetensors).status());
  }
  return OkStatus();
}

}  // namespace cairn
