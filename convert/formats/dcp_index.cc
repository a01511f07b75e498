#include "convert/formats/dcp_index.h"

#include <bit>
#include <cstring>
#include <map>

#include "ckpt/layout.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

// A chunk's identity: name, and offset where it is of a tensor.
using ChunkKey = std::pair<std::string, std::string>;

ChunkKey KeyOf(std::string_view name, const Dims* offset) {
  return {std::string(name), offset ? ToString(*offset) : ""};
}

Result<DcpItem> ParseItem(const PyValue& info, std::string_view name) {
  const auto file = AsText(Find(info, "relative_path"));
  const auto offset = AsInt(Find(info, "offset")), length = AsInt(Find(info, "length"));
  if (!file || !offset || !length || *offset < 0 || *length < 0 || *offset > INT64_MAX - *length)
    return Corrupt(".metadata: {} has no place in a file", name);
  if (!IsPlainFileName(std::string(*file)))
    return Corrupt(".metadata: {} lies in {}, which is outside of the directory", name, *file);
  const PyValue* transforms = Find(info, "transform_descriptors");
  if (transforms && !transforms->items.empty())
    return NotSupported("{} is stored through an extension of torch.distributed.checkpoint; save it without",
                        name);
  const auto begin = static_cast<uint64_t>(*offset);
  return DcpItem{std::string(*file), {begin, begin + static_cast<uint64_t>(*length)}};
}

Result<std::map<ChunkKey, DcpItem>> ParseStorage(const PyValue& root) {
  const PyValue* storage = FindKind(root, "storage_data", PyKind::kDict);
  if (!storage) return Corrupt(".metadata has no storage_data");
  std::map<ChunkKey, DcpItem> items;
  for (size_t i = 0; i + 1 < storage->items.size(); i += 2) {
    const PyValue& index = *storage->items[i];
    const auto name = AsText(Find(index, "fqn"));
    if (!name) return Corrupt(".metadata: a chunk without a name");
    CAIRN_ASSIGN_OR_RETURN(DcpItem item, ParseItem(*storage->items[i + 1], *name));
    const auto offset = AsDims(Find(index, "offset"));
    if (!items.emplace(KeyOf(*name, offset ? &*offset : nullptr), std::move(item)).second)
      return Corrupt(".metadata: a chunk of {} is there twice", *name);
  }
  return items;
}

std::map<std::string, std::vector<std::string>, std::less<>> ParsePaths(const PyValue& root) {
  std::map<std::string, std::vector<std::string>, std::less<>> paths;
  const PyValue* planner = FindKind(root, "planner_data", PyKind::kDict);
  for (size_t i = 0; planner && i + 1 < planner->items.size(); i += 2)
    for (const PyValue* part : planner->items[i + 1]->items)
      paths[KeyText(*planner->items[i])].push_back(KeyText(*part));
  return paths;
}

Status AddTensor(const PyValue& meta, const std::map<ChunkKey, DcpItem>& items, DcpTensor& tensor) {
  const auto shape = AsDims(Find(meta, "size"));
  const PyValue* chunks = FindKind(meta, "chunks", PyKind::kList);
  if (!shape || !chunks) return Corrupt(".metadata: {} has no shape", tensor.name);
  tensor.shape = *shape;
  for (const PyValue* chunk : chunks->items) {
    const auto offsets = AsDims(Find(*chunk, "offsets")), sizes = AsDims(Find(*chunk, "sizes"));
    if (!offsets || !sizes) return Corrupt(".metadata: a chunk of {} has no shape", tensor.name);
    const auto item = items.find(KeyOf(tensor.name, &*offsets));
    if (item == items.end())
      return Corrupt(".metadata: the chunk of {} at {} is in no file; a rank's part of the save is missing",
                     tensor.name, ToString(*offsets));
    tensor.chunks.push_back({{*offsets, *sizes}, item->second});
  }
  return OkStatus();
}

double NumberAt(const TorchType& type, const char* bytes) {
  const auto load = [&]<typename T>(T value) {
    std::memcpy(&value, bytes, sizeof(T));
    return static_cast<double>(value);
  };
  if (type.name == "float64") return load(double{});
  if (type.name == "int64") return load(int64_t{});
  if (type.name == "int32") return load(int32_t{});
  return load(float{});
}

}  // namespace

Result<DcpIndex> ReadDcpIndex(FileSystem& fs, const std::string& directory) {
  const std::string path = JoinPath(directory, ".metadata");
  CAIRN_ASSIGN_OR_RETURN(TorchFile metadata, TorchFile::Open(fs, path));
  const PyValue* tensors = FindKind(metadata.root(), "state_dict_metadata", PyKind::kDict);
  if (!tensors) return NotSupported("{}: not of torch.distributed.checkpoint", path);
  auto items = ParseStorage(metadata.root());
  if (!items.ok()) return items.status().WithContext(directory);
  const auto paths = ParsePaths(metadata.root());
  std::vector<DcpTensor> found;
  std::vector<DcpBytes> bytes;
  for (size_t i = 0; i + 1 < tensors->items.size(); i += 2) {
    const PyValue& meta = *tensors->items[i + 1];
    const std::string name = KeyText(*tensors->items[i]);
    const auto at = paths.find(name);
    const std::vector<std::string> parts = at == paths.end() ? std::vector<std::string>() : at->second;
    if (!meta.IsNamed("TensorStorageMetadata")) {
      const auto item = items->find(KeyOf(name, nullptr));
      if (item != items->end()) bytes.push_back({name, parts, item->second});
      continue;
    }
    DcpTensor& tensor = found.emplace_back(DcpTensor{name, parts, {}, {}});
    CAIRN_RETURN_IF_ERROR(AddTensor(meta, *items, tensor).WithContext(directory));
  }
  return DcpIndex{std::move(found), std::move(bytes), std::move(metadata)};
}

Result<TorchFile> DcpItems::Open(const std::string& name, const DcpItem& item) {
  const std::string path = JoinPath(files_.directory(), item.file);
  CAIRN_ASSIGN_OR_RETURN(const auto file, files_.Get(item.file, Direct::kOff));
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, files_.file_system().Stat(path));
  if (item.where.end > info.bytes)
    return Corrupt("{}: {} at byte {} reaches behind the end of the file ({} bytes); it was truncated", path,
                   name, item.where.begin, info.bytes);
  Result<TorchFile> torch = TorchFile::Read(*file, item.where);
  if (!torch.ok())
    return torch.status().WithContext(fmt::format("{}: {} at byte {}", path, name, item.where.begin));
  return torch;
}

Result<TensorArray> DcpItems::Array(const DcpTensor& tensor, const DcpChunk& chunk, uint32_t file_index) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile torch, Open(tensor.name, chunk.item));
  const std::string path = JoinPath(files_.directory(), chunk.item.file);
  const PyValue& root = torch.root();
  if (!root.is(PyKind::kTensor))
    return NotSupported("{}: {} at byte {} is a {}, not a plain tensor", path, tensor.name,
                        chunk.item.where.begin, root.ClassName());
  if (!(root.tensor->shape == chunk.box.extent))
    return Corrupt("{}: {} at byte {} has shape {}, .metadata says {}", path, tensor.name,
                   chunk.item.where.begin, ToString(root.tensor->shape), ToString(chunk.box.extent));
  auto array = ArrayOf(torch, *root.tensor, file_index, tensor.name);
  if (!array.ok()) return array.status().WithContext(path);
  return array;
}

Result<double> DcpItems::Number(const std::string& name, const DcpItem& item) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile torch, Open(name, item));
  const PyValue& root = torch.root();
  if (const auto number = AsNumber(&root)) return *number;
  const TensorRef* tensor = root.tensor;
  if (!tensor || tensor->shape.Volume() != 1) return NotSupported("{} is no number", name);
  CAIRN_ASSIGN_OR_RETURN(const uint64_t at, torch.Locate(*tensor));
  CAIRN_ASSIGN_OR_RETURN(const auto file, files_.Get(item.file, Direct::kOff));
  std::array<char, 16> bytes{};
  CAIRN_RETURN_IF_ERROR(file->ReadAt(at + tensor->offset * tensor->type->bytes,
                                     std::as_writable_bytes(std::span(bytes).first(tensor->type->bytes))));
  return NumberAt(*tensor->type, bytes.data());
}

}  // namespace cairn
