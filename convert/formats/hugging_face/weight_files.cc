#include "convert/formats/hugging_face/weight_files.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <unordered_set>

#include "ckpt/base/glob.h"
#include "ckpt/base/threads.h"
#include "ckpt/io/strict_json.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/partial_dir.h"
#include "convert/foreign/file_sets.h"
#include "convert/foreign/stored_builder.h"
#include "convert/formats/hugging_face/config_model.h"
#include "convert/formats/hugging_face/safetensors_header.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxIndexBytes = 256 << 20;
constexpr size_t kMostThreads = 8;

// True of a file that may be one of several, or not of the model at all.
bool MayBeAPart(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return (name.ends_with(".safetensors") || name.ends_with(".bin")) && name != kSafetensorsFile &&
         name != kPickleFile && !FitsGlob(name, "*-of-00001.*");
}

// Adds the tensors of all files of `names`; `first` gets the number of the first one of each.
using ReadFiles = Status (*)(FileSystem& fs, WeightFiles& files, std::vector<size_t>& first);

void AddSafetensors(SafetensorsHeader header, WeightFiles& files, uint32_t file) {
  for (StoredArray& tensor : header.tensors) {
    StoredExtent& extent = tensor.extents[0];
    extent.file = file;
    files.account.AddStorage(files.names[file], tensor.name, extent.file_offset, tensor.bytes());
    files.tensors.push_back(std::move(tensor));
  }
  const bool vllm = FitsGlob(files.names[file], "model-rank-*-part-*.safetensors");
  if (vllm || header.metadata.contains(kShardingInfo)) files.slice = files.names[file];
  if (file == 0) files.metadata = std::move(header.metadata);
}

// Threads read the headers, since each of hundreds may take several waits for a file system.
Status AddAllSafetensors(FileSystem& fs, WeightFiles& files, std::vector<size_t>& first) {
  const size_t count = files.names.size();
  std::vector<std::optional<Result<SafetensorsHeader>>> headers(count);
  std::atomic<size_t> next = 0;
  RunOnThreads(static_cast<int>(std::min(count, kMostThreads)), [&] {
    for (size_t i; (i = next++) < count;)
      headers[i] = ReadSafetensorsHeader(fs, JoinPath(files.directory, files.names[i]));
  });
  for (uint32_t file = 0; file < count; ++file) {
    if (!headers[file]->ok()) return headers[file]->status();
    first.push_back(files.tensors.size());
    AddSafetensors(*std::move(*headers[file]), files, file);
  }
  return OkStatus();
}

Status AddPickled(FileSystem& fs, WeightFiles& files, uint32_t number) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs, files.directory, files.names[number]));
  files.account.AddFile(file);
  const auto add = [&](const std::string& key, const TensorRef& tensor) -> Status {
    CAIRN_ASSIGN_OR_RETURN(StoredArray array, ArrayOf(file, tensor, number, key));
    files.tensors.push_back(std::move(array));
    return OkStatus();
  };
  return ForEachTensor(file.root(), add).WithContext(file.path());
}

Status AddAllPickled(FileSystem& fs, WeightFiles& files, std::vector<size_t>& first) {
  for (uint32_t file = 0; file < files.names.size(); ++file) {
    first.push_back(files.tensors.size());
    CAIRN_RETURN_IF_ERROR(AddPickled(fs, files, file));
  }
  return OkStatus();
}

// A saver that wrote two experts under one name leaves no other trace.
Status CheckCopy(const std::string& path, const StoredArray& tensor, const std::string& file,
                 const std::string& other) {
  if (!FitsGlob(tensor.name, "*experts.*")) return OkStatus();
  return Corrupt("{}: {}, of an expert, is in {} and in {}; remove the file that does not belong here", path,
                 tensor.name, other, file);
}

// A tensor that is read from another file.
void LeaveCopy(const StoredArray& tensor, WeightFiles& files) {
  for (const StoredExtent& extent : tensor.extents)
    files.account.Omit(Fate::kReplica, files.names[extent.file], extent.file_offset,
                       extent.range.size() * SizeOf(tensor.dtype), tensor.name);
  if (!tensor.extents.empty())
    files.account.OmitValue(fmt::format("{} in {}, as the index names another file", tensor.name,
                                        files.names[tensor.extents[0].file]));
}

Result<WeightFiles> ReadIndexed(FileSystem& fs, const std::string& directory, const std::string& name,
                                ReadFiles read) {
  const std::string path = JoinPath(directory, name);
  CAIRN_ASSIGN_OR_RETURN(const WeightIndex index, ReadWeightIndex(fs, path));
  WeightFiles files{directory, index.files, {}, {}, {}};
  std::vector<std::pair<std::string, std::string>> found;
  std::vector<size_t> first;
  CAIRN_RETURN_IF_ERROR(read(fs, files, first));
  found.reserve(files.tensors.size());
  for (size_t file = 0, i = 0; i < files.tensors.size(); ++i) {
    while (file + 1 < first.size() && i >= first[file + 1]) ++file;
    found.emplace_back(files.tensors[i].name, files.names[file]);
  }
  CAIRN_RETURN_IF_ERROR(CheckAgainstIndex(path, index, found));
  std::vector<StoredArray> taken;
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string& named = index.file_of.at(found[i].first);
    if (named == found[i].second) {
      taken.push_back(std::move(files.tensors[i]));
      continue;
    }
    CAIRN_RETURN_IF_ERROR(CheckCopy(path, files.tensors[i], found[i].second, named));
    LeaveCopy(files.tensors[i], files);
  }
  files.tensors = std::move(taken);
  return files;
}

Result<WeightFiles> ReadOneOrIndexed(FileSystem& fs, const std::string& path, const char* one,
                                     const char* index, ReadFiles read) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (info.is_directory() && !fs.Stat(JoinPath(path, one)).ok()) return ReadIndexed(fs, path, index, read);
  WeightFiles files{info.is_directory() ? path : ParentDir(path), {}, {}, {}, {}};
  files.names = {info.is_directory() ? one : path.substr(path.find_last_of('/') + 1)};
  std::vector<size_t> first;
  CAIRN_RETURN_IF_ERROR(read(fs, files, first));
  return files;
}

// "model-00002-of-00005.safetensors": if one exists, all must.
Status CheckShards(const std::string& directory, const std::vector<std::string>& names) {
  std::map<std::vector<std::string>, std::set<std::string>> shards;  // by the rest of the name
  for (const std::string& name : names)
    if (std::vector<std::string> v; FitsPattern("*-#-of-#*", name, v))
      shards[{v[0], v[2], v[3]}].insert(v[1]);
  for (const auto& [rest, found] : shards)
    if (const size_t count = std::stoul(rest[1]); found.size() < count)
      return NotFound("{}/{}-N-of-{}{}: only {} of {} such files exist", directory, rest[0], rest[1], rest[2],
                      found.size(), count);
  return OkStatus();
}

bool IsPickled(FileSystem& fs, const std::string& path) {
  return path.ends_with(".bin") || (!HasAny(fs, path, kSafetensors) && HasAny(fs, path, kPickles));
}

Result<WeightFiles> ReadWeights(FileSystem& fs, const std::string& path) {
  return IsPickled(fs, path) ? ReadOneOrIndexed(fs, path, kPickleFile, kPickleIndex, AddAllPickled)
                             : ReadSafetensorsFiles(fs, path);
}

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

Status CheckAgainstIndex(const std::string& path, const WeightIndex& index,
                         const std::vector<std::pair<std::string, std::string>>& found) {
  std::map<std::string, std::string> elsewhere;
  std::unordered_set<const std::string*> seen;
  seen.reserve(found.size());
  for (const auto& [tensor, file] : found) {
    const auto named = index.file_of.find(tensor);
    if (named == index.file_of.end())
      return Corrupt("{}: tensor {} is in {}, but the index does not list it", path, tensor, file);
    if (named->second != file)
      elsewhere[tensor] = file;
    else if (!seen.insert(&named->first).second)
      return Corrupt("{}: tensor {} is in {} twice", path, tensor, file);
  }
  const auto missing =
      std::ranges::find_if(index.file_of, [&](const auto& named) { return !seen.contains(&named.first); });
  if (missing == index.file_of.end()) return OkStatus();
  const auto& [tensor, file] = *missing;
  const auto other = elsewhere.find(tensor);
  return Corrupt("{}: tensor {} should be in {}, but is not{}", path, tensor, file,
                 other == elsewhere.end()
                     ? ""
                     : fmt::format("; {} has it: correct the weight_map of the index", other->second));
}

bool HasAny(FileSystem& fs, const std::string& directory, std::span<const char* const> names) {
  return std::ranges::any_of(names,
                             [&](const char* name) { return fs.Stat(JoinPath(directory, name)).ok(); });
}

Result<WeightFiles> ReadSafetensorsFiles(FileSystem& fs, const std::string& path) {
  const bool adapter = !HasAny(fs, path, kSafetensors) && fs.Stat(JoinPath(path, kAdapterFile)).ok();
  return ReadOneOrIndexed(fs, path, adapter ? kAdapterFile : kSafetensorsFile, kSafetensorsIndex,
                          AddAllSafetensors);
}

Status CheckNoSlice(const WeightFiles& files, ReaderOptions& options) {
  if (files.slice.empty() || IsAllowed(options, "slice")) return OkStatus();
  return NotSupported(
      "{}: it has only one rank's part of each tensor; give the directory with the files of all ranks, or "
      "--allow slice, which takes the part",
      JoinPath(files.directory, files.slice));
}

bool IsHuggingFace(FileSystem& fs, const std::string& path) {
  const Result<FileInfo> info = fs.Stat(path);
  if (!info.ok()) return false;
  if (info->is_directory())
    return fs.Stat(JoinPath(path, "config.json")).ok() &&
           (HasAny(fs, path, kSafetensors) || HasAny(fs, path, kPickles));
  return (path.ends_with(".safetensors") || path.ends_with(".bin")) &&
         fs.Stat(JoinPath(ParentDir(path), "config.json")).ok();
}

Result<std::unique_ptr<ForeignSource>> OpenHuggingFace(FileSystem& fs, const std::string& path,
                                                       ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(WeightFiles files, ReadWeights(fs, path));
  CAIRN_RETURN_IF_ERROR(CheckNoSlice(files, options));
  auto source = OpenStoredModel(fs, std::move(files), options);
  if (source.ok() || !MayBeAPart(path)) return source;
  return NotSupported(
      "{}: by itself it is not the model of the config.json beside it; give the directory, or --from {} for "
      "this file under its own names: {}",
      path, IsPickled(fs, path) ? "torch" : "safetensors", source.status().message());
}

Result<StoredNames> NamesOfHuggingFace(FileSystem& fs, const std::string& path) {
  if (MayBeAPart(path)) return NotSupported("{}: one of several files has not all names", path);
  CAIRN_ASSIGN_OR_RETURN(const WeightFiles files, ReadWeights(fs, path));
  StoredNames names;
  for (const StoredArray& tensor : files.tensors) names.tensors.push_back(WholeTensor(tensor));
  CAIRN_ASSIGN_OR_RETURN(names.model.rest["config"],
                         ReadJsonObject(fs, JoinPath(files.directory, "config.json"), kMaxConfigBytes));
  return names;
}

Status CheckWeightFiles(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names) {
  CAIRN_RETURN_IF_ERROR(CheckShards(directory, names));
  for (const std::string& name : names) {
    if (name.ends_with(".bin.index.json"))
      CAIRN_RETURN_IF_ERROR(ReadIndexed(fs, directory, name, AddAllPickled).status());
    if (name.ends_with(".safetensors.index.json"))
      CAIRN_RETURN_IF_ERROR(ReadIndexed(fs, directory, name, AddAllSafetensors).status());
  }
  return OkStatus();
}

}  // namespace cairn
