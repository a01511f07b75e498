// storage_data comes first: each chunk, by name and offset, has a place in a file, and no two places
// overlap. Then each tensor of state_dict_metadata must find a place for each of its chunks, and in the end
// each place must have been named. So a save that lacks the part of a rank is found before any data is read.
// DcpItems opens an item as the torch file that it is, and lists its storages in the account the first time.

#include "convert/formats/dcp/dcp_index.h"

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/base/glob.h"
#include "ckpt/io/page_cache.h"
#include "ckpt/model/catalog.h"
#include "ckpt/model/layout.h"
#include "convert/formats/training/param_groups.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

// Many parts of a damaged .metadata may be the same value, so expanding them could take far more memory than
// the file has bytes. Hence there are no more chunks than places, no two items overlap, names are not copied,
// and paths are not much longer than the file.
constexpr uint64_t kMaxPathFactor = 16;
// The beginning of an item, where torch aligns each of five records, at most to a page; its end; all
// together.
constexpr uint64_t kHeadBytes = 24 << 10, kTailBytes = 8 << 10, kMaxAheadBytes = 256 << 20;

// An attribute of an object; null for a dict.
const PyValue* Attribute(const PyValue& object, std::string_view name) {
  return object.is(PyKind::kObject) ? Find(object, name) : nullptr;
}

// A chunk's identity: its name, which is in the pickle, and its offset if it belongs to a tensor. A name may
// be long and of many chunks.
using ChunkKey = std::pair<std::string_view, std::string>;

ChunkKey KeyOf(std::string_view name, const Dims* offset) { return {name, offset ? ToString(*offset) : ""}; }

Result<DcpItem> ParseItem(const PyValue& info, std::string_view name) {
  const auto file = AsText(Attribute(info, "relative_path"));
  const auto offset = AsInt(Attribute(info, "offset")), length = AsInt(Attribute(info, "length"));
  if (!file || !offset || !length || *offset < 0 || *length < 0 || *offset > INT64_MAX - *length)
    return Corrupt(".metadata: {} has no place in a file", name);
  if (!IsPlainFileName(std::string(*file)))
    return Corrupt(".metadata: {} lies in {}, which is outside of the directory", name, *file);
  const PyValue* transforms = Attribute(info, "transform_descriptors");
  if (transforms && !transforms->items.empty())
    return NotSupported("{} is stored through an extension of torch.distributed.checkpoint; save it without",
                        name);
  const auto begin = static_cast<uint64_t>(*offset);
  return DcpItem{std::string(*file), {begin, begin + static_cast<uint64_t>(*length)}};
}

Status CheckApart(const std::map<ChunkKey, DcpItem>& items) {
  std::vector<const DcpItem*> sorted;
  for (const auto& [key, item] : items)
    if (item.where.size() > 0) sorted.push_back(&item);
  std::ranges::sort(sorted, {}, [](const DcpItem* item) {
    return std::pair<std::string_view, uint64_t>(item->file, item->where.begin);
  });
  for (size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i]->file == sorted[i - 1]->file && sorted[i]->where.begin < sorted[i - 1]->where.end)
      return Corrupt(".metadata: two of its items overlap in {} at byte {}", sorted[i]->file,
                     sorted[i]->where.begin);
  return OkStatus();
}

Result<std::map<ChunkKey, DcpItem>> ParseStorage(const PyValue& root) {
  const PyValue* storage = FindKind(root, "storage_data", PyKind::kDict);
  if (!storage) return Corrupt(".metadata has no storage_data");
  std::map<ChunkKey, DcpItem> items;
  for (size_t i = 0; i + 1 < storage->items.size(); i += 2) {
    const PyValue& index = *storage->items[i];
    const auto name = AsText(Attribute(index, "fqn"));
    if (!name) return Corrupt(".metadata: a chunk without a name");
    CAIRN_ASSIGN_OR_RETURN(DcpItem item, ParseItem(*storage->items[i + 1], *name));
    const auto offset = AsDims(Attribute(index, "offset"));
    if (!items.emplace(KeyOf(*name, offset ? &*offset : nullptr), std::move(item)).second)
      return Corrupt(".metadata: a chunk of {} occurs twice", *name);
  }
  CAIRN_RETURN_IF_ERROR(CheckApart(items));
  return items;
}

using Paths = std::map<std::string, std::vector<std::string>, std::less<>>;

Result<Paths> ParsePaths(const PyValue& root, uint64_t max_bytes) {
  Paths paths;
  uint64_t bytes = 0;
  const PyValue* planner = FindKind(root, "planner_data", PyKind::kDict);
  for (size_t i = 0; planner && i + 1 < planner->items.size(); i += 2) {
    std::vector<std::string>& path = paths[KeyText(*planner->items[i])];
    for (const PyValue* part : planner->items[i + 1]->items) {
      path.push_back(KeyText(*part));
      bytes += sizeof(std::string) + path.back().size();
      if (bytes > max_bytes)
        return Corrupt(".metadata: the paths of its planner_data are too long for its size");
    }
  }
  return paths;
}

// The type in TensorProperties, whose state is a tuple that begins with it, or an object with that attribute.
std::optional<Dtype> DtypeOf(const PyValue* properties) {
  if (!properties) return std::nullopt;
  const PyValue* dtype = Attribute(*properties, "dtype");
  const PyValue* state = properties->state;
  if (!dtype && state && state->is(PyKind::kTuple) && !state->items.empty()) dtype = state->items[0];
  const TorchType* type = dtype && dtype->is(PyKind::kGlobal) ? FindTorchType(dtype->text) : nullptr;
  return type ? type->dtype : std::nullopt;
}

// `chunks_left`: of all tensors.
Status AddTensor(const PyValue& meta, const std::map<ChunkKey, DcpItem>& items, uint64_t& chunks_left,
                 DcpTensor& tensor) {
  const auto shape = AsDims(Attribute(meta, "size"));
  const PyValue* chunks = Attribute(meta, "chunks");
  if (!shape || !chunks || !chunks->is(PyKind::kList))
    return Corrupt(".metadata: {} has no shape", tensor.name);
  tensor.shape = *shape;
  tensor.dtype = DtypeOf(Attribute(meta, "properties"));
  for (const PyValue* chunk : chunks->items) {
    const auto offsets = AsDims(Attribute(*chunk, "offsets")), sizes = AsDims(Attribute(*chunk, "sizes"));
    if (!offsets || !sizes) return Corrupt(".metadata: a chunk of {} has no shape", tensor.name);
    const auto item = items.find(KeyOf(tensor.name, &*offsets));
    if (item == items.end())
      return Corrupt(".metadata: the chunk of {} at {} is in no file; a rank's part of the save is missing",
                     tensor.name, ToString(*offsets));
    if (chunks_left-- == 0) return Corrupt(".metadata: {} has more chunks than places", tensor.name);
    tensor.chunks.push_back({{*offsets, *sizes}, item->second});
  }
  if (tensor.chunks.empty() && tensor.shape.Volume() > 0)
    return NotFound(".metadata: {} of shape {} has no chunk; a rank's part of the save is missing",
                    tensor.name, ToString(tensor.shape));
  return OkStatus();
}

// Each place in a file is a chunk's or an item's. Errors: Corrupt naming one that is not.
Status CheckAllNamed(const std::map<ChunkKey, DcpItem>& items, const std::vector<DcpTensor>& tensors,
                     const std::vector<DcpBytes>& bytes) {
  std::set<ChunkKey> named;
  for (const DcpBytes& item : bytes) named.insert(KeyOf(item.name, nullptr));
  for (const DcpTensor& tensor : tensors)
    for (const DcpChunk& chunk : tensor.chunks) named.insert(KeyOf(tensor.name, &chunk.box.offset));
  for (const auto& [key, item] : items)
    if (!named.contains(key))
      return Corrupt("{}{} has a place in {} but is not in state_dict_metadata", key.first,
                     key.second.empty() ? "" : " at " + key.second, item.file);
  return OkStatus();
}

Status CheckInFile(FileSystem& fs, const std::string& directory, std::string_view name, const DcpItem& item) {
  if (item.value) return OkStatus();
  const std::string path = JoinPath(directory, item.file);
  const auto info = fs.Stat(path);
  if (info.status().kind() == StatusKind::kNotFound)
    return NotFound("{}: the file is missing; .metadata says that {} is in it", path, name);
  if (!info.ok()) return info.status();
  if (item.where.end > info->bytes)
    return Corrupt("{}: {} at byte {} reaches beyond the end of the file ({} bytes); it was truncated", path,
                   name, item.where.begin, info->bytes);
  return OkStatus();
}

}  // namespace

Status CheckCovered(const DcpIndex& index) {
  Catalog catalog{{{}, {std::string(kDcpMetadata)}}, {}};
  for (const DcpTensor& tensor : index.tensors) {
    const Dtype dtype = tensor.dtype.value_or(Dtype::kF32);
    for (const DcpChunk& chunk : tensor.chunks)
      catalog.pieces.push_back({.tensor = static_cast<uint32_t>(catalog.tensors.size()),
                                .box = chunk.box,
                                .range = {0, chunk.box.Volume()},
                                .stored_bytes = chunk.box.Volume() * SizeOf(dtype)});
    catalog.tensors.push_back({{.name = tensor.name, .shape = tensor.shape}, Role::kWeight, dtype});
  }
  return CheckCoverage(catalog);
}

std::vector<std::pair<std::string_view, const DcpItem*>> DcpIndex::items() const {
  std::vector<std::pair<std::string_view, const DcpItem*>> items;
  for (const DcpTensor& tensor : tensors)
    for (const DcpChunk& chunk : tensor.chunks)
      if (!chunk.array) items.emplace_back(tensor.name, &chunk.item);
  for (const DcpBytes& item : bytes) items.emplace_back(item.name, &item.item);
  return items;
}

Result<DcpIndex> ReadDcpIndex(FileSystem& fs, const std::string& directory) {
  const std::string path = JoinPath(directory, kDcpMetadata);
  CAIRN_ASSIGN_OR_RETURN(TorchFile metadata, TorchFile::Open(fs, directory, std::string(kDcpMetadata)));
  const PyValue* tensors = FindKind(metadata.root(), "state_dict_metadata", PyKind::kDict);
  if (!tensors) return NotSupported("{}: it was not written by torch.distributed.checkpoint", path);
  auto items = ParseStorage(metadata.root());
  if (!items.ok()) return items.status().WithContext(directory);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  const auto paths = ParsePaths(metadata.root(), kMaxPathFactor * info.bytes);
  if (!paths.ok()) return paths.status().WithContext(directory);
  uint64_t chunks_left = items->size();
  std::set<std::string_view> names;
  std::vector<DcpTensor> found;
  std::vector<DcpBytes> bytes;
  for (size_t i = 0; i + 1 < tensors->items.size(); i += 2) {
    const PyValue& meta = *tensors->items[i + 1];
    const std::string name = KeyText(*tensors->items[i]);
    if (tensors->items[i]->is(PyKind::kStr) && !names.insert(tensors->items[i]->text).second)
      return Corrupt("{}: {} occurs twice", path, name);
    const auto at = paths->find(name);
    const std::vector<std::string> parts = at == paths->end() ? std::vector<std::string>() : at->second;
    if (!meta.IsNamed("TensorStorageMetadata")) {
      const auto item = items->find(KeyOf(name, nullptr));
      if (item == items->end())
        return NotFound("{}: {} is in no file; a rank's part of the save is missing", path, name);
      bytes.push_back({name, parts, item->second});
      continue;
    }
    DcpTensor& tensor = found.emplace_back(DcpTensor{name, parts, {}, {}});
    CAIRN_RETURN_IF_ERROR(AddTensor(meta, *items, chunks_left, tensor).WithContext(directory));
  }
  CAIRN_RETURN_IF_ERROR(CheckAllNamed(*items, found, bytes).WithContext(path));
  return DcpIndex{std::move(found), std::move(bytes), std::move(metadata)};
}

void DropLostStates(FileSystem& fs, const std::string& directory, ReaderOptions& options,
                    const std::function<bool(const std::string&)>& is_state, DcpIndex& index) {
  if (!FitsAnyGlob("optimizer", options.allow)) return;
  const auto is_lost = [&](const auto& item) {
    return is_state(std::string(item.first)) && !CheckInFile(fs, directory, item.first, *item.second).ok();
  };
  if (std::ranges::none_of(index.items(), is_lost) || !IsAllowed(options, "optimizer")) return;
  std::erase_if(index.tensors, [&](const DcpTensor& tensor) { return is_state(tensor.name); });
  std::erase_if(index.bytes, [&](const DcpBytes& bytes) { return is_state(bytes.name); });
}

Status CheckDcpFiles(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names) {
  if (std::ranges::find(names, kDcpMetadata) == names.end()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const DcpIndex index, ReadDcpIndex(fs, directory));
  for (const auto& [name, item] : index.items())
    CAIRN_RETURN_IF_ERROR(CheckInFile(fs, directory, name, *item));
  return CheckCovered(index).WithContext(JoinPath(directory, kDcpMetadata));
}

nlohmann::json DcpIndex::PathsOf(const std::set<std::string, std::less<>>& names) const {
  nlohmann::json paths = nlohmann::json::object();
  for (const std::string& name : names) paths[name] = {name};
  for (const DcpTensor& tensor : tensors)
    if (!metadata && names.contains(tensor.name)) paths[tensor.name] = tensor.path;
  const PyValue* planner = metadata ? FindKind(metadata->root(), "planner_data", PyKind::kDict) : nullptr;
  for (size_t i = 0; planner && i + 1 < planner->items.size(); i += 2) {
    const auto name = AsText(planner->items[i]);
    if (!name || !names.contains(*name)) continue;
    nlohmann::json& path = paths[std::string(*name)] = nlohmann::json::array();
    for (const PyValue* part : planner->items[i + 1]->items)
      path.push_back(part->is(PyKind::kInt) ? nlohmann::json(part->integer) : nlohmann::json(KeyText(*part)));
  }
  return paths;
}

Result<TorchFile> DcpItems::Open(const std::string& name, const DcpItem& item) {
  CAIRN_ASSIGN_OR_RETURN(TorchFile torch, Peek(name, item));
  List(torch, item);
  return torch;
}

void DcpItems::List(const TorchFile& file, const DcpItem& item) {
  if (listed_.emplace(item.file, item.where.begin).second) account_.AddFile(file);
}

StoredArray DcpItems::Whole(const std::string& name, const DcpItem& item, uint32_t file_index) {
  listed_.emplace(item.file, item.where.begin);
  account_.AddStorage(item.file, name, item.where.begin, item.where.size());
  return {name, Dtype::kU8, {item.where.size()}, {{{0, item.where.size()}, file_index, item.where.begin}}};
}

Result<TorchFile> DcpItems::Peek(const std::string& name, const DcpItem& item) {
  if (item.value) return *item.value;
  CAIRN_RETURN_IF_ERROR(CheckInFile(files_.file_system(), files_.directory(), name, item));
  CAIRN_ASSIGN_OR_RETURN(const auto file, files_.Get(item.file, Direct::kOff));
  Result<TorchFile> torch = TorchFile::Read(*file, item.where, files_.directory(), item.file);
  if (!torch.ok())
    return torch.status().WithContext(
        fmt::format("{}: {} at byte {}", JoinPath(files_.directory(), item.file), name, item.where.begin));
  return torch;
}

// A zip's directory is at its end, and its pickle at its beginning. The end of an item is next to the
// beginning of another one: the kernel is asked for both at once.
void DcpItems::ReadAhead(const DcpIndex& index) {
  std::map<std::string_view, std::vector<Stretch>> wanted;
  for (const auto& [name, item] : index.items()) {
    const auto [begin, end] = item->where;
    const uint64_t head = std::min(kHeadBytes, end - begin), tail = std::min(kTailBytes, end - begin);
    wanted[item->file].insert(wanted[item->file].end(), {{begin, begin + head}, {end - tail, end}});
  }
  uint64_t left = kMaxAheadBytes;
  for (auto& [name, stretches] : wanted) {
    const auto file = files_.Get(std::string(name), Direct::kOff);
    if (!file.ok()) return;
    std::ranges::sort(stretches, {}, &Stretch::begin);
    for (size_t i = 0, next = 1; i < stretches.size() && left > 0; i = next++) {
      auto [begin, end] = stretches[i];
      for (; next < stretches.size() && stretches[next].begin <= end + kTailBytes; ++next)
        end = std::max(end, stretches[next].end);
      WillNeed(**file, begin, end - begin);
      left -= std::min(left, end - begin);
    }
  }
}

Status DcpItems::ListAll(const DcpIndex& index) {
  for (const auto& [name, item] : index.items())
    if (!listed_.contains({item->file, item->where.begin}))
      CAIRN_RETURN_IF_ERROR(Open(std::string(name), *item).status());
  return OkStatus();
}

Status DcpItems::Omit(Fate fate, const std::string& name, const DcpItem& item) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, Open(name, item));
  account_.OmitBelow(fate, file, file.root(), name);
  return OkStatus();
}

Status DcpItems::Omit(Fate fate, const DcpTensor& tensor) {
  const auto omit = [&](const std::string& file, const StoredArray& array) {
    for (const StoredExtent& extent : array.extents)
      account_.Omit(fate, file, extent.file_offset, extent.range.size() * SizeOf(array.dtype), tensor.name);
  };
  for (const DcpChunk& chunk : tensor.chunks) {
    if (chunk.array)
      omit(chunk.item.file, *chunk.array);
    else
      CAIRN_RETURN_IF_ERROR(Omit(fate, tensor.name, chunk.item));
    for (const auto& [file, array] : chunk.replicas) omit(file, array);
  }
  return OkStatus();
}

StoredArray DcpItems::InFile(StoredArray array, uint32_t file_index) {
  for (StoredExtent& extent : array.extents) extent.file = file_index;
  return array;
}

Result<StoredArray> DcpItems::Array(const DcpTensor& tensor, const DcpChunk& chunk, uint32_t file_index) {
  if (chunk.array) return InFile(*chunk.array, file_index);
  CAIRN_ASSIGN_OR_RETURN(const TorchFile torch, Open(tensor.name, chunk.item));
  const std::string path = JoinPath(files_.directory(), chunk.item.file);
  const PyValue& root = torch.root();
  if (!root.is(PyKind::kTensor))
    return NotSupported("{}: {} at byte {} is a {}, not a plain tensor", path, tensor.name,
                        chunk.item.where.begin, root.ClassName());
  if (!(root.tensor->shape == chunk.box.extent))
    return Corrupt("{}: {} at byte {} has shape {}, but .metadata says {}", path, tensor.name,
                   chunk.item.where.begin, ToString(root.tensor->shape), ToString(chunk.box.extent));
  auto array = ArrayOf(torch, *root.tensor, file_index, tensor.name);
  if (!array.ok()) return array.status().WithContext(path);
  return array;
}

Result<std::optional<double>> DcpItems::Number(const std::string& name, const DcpItem& item) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile torch, Open(name, item));
  return ScalarOf(files_.file_system(), torch, &torch.root());
}

}  // namespace cairn
