// The pickle has the fields of torch's Metadata in their order: what each entry is, the paths of the
// planner, and where each chunk lies. A chunk is a zip of the target, so its place is the zip's offset and
// length; the zips must be placed before.

#include "convert/formats/dcp/dcp_metadata.h"

#include <algorithm>

#include "convert/torch/pickle_emitter.h"

namespace cairn {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kVersion = "1.0.0";

void EmitProperties(Dtype dtype, PickleEmitter& p) {
  p.BeginObject(kModule, "TensorProperties");
  p.BeginTuple();
  p.TorchDtype(dtype);
  p.Global("torch.serialization", "_get_layout");
  p.BeginTuple();
  p.Text("torch.strided");
  p.EndTuple();
  p.Reduce();
  p.Bool(false);
  p.Global(kModule, "_MEM_FORMAT_ENCODING");
  p.BeginTuple();
  p.Int(0);
  p.EndTuple();
  p.Reduce();
  p.Bool(false);
  p.EndTuple();
  p.EndObject();
}

void EmitTensor(const DcpEntry& entry, PickleEmitter& p) {
  p.BeginObject(kModule, "TensorStorageMetadata");
  p.BeginDict();
  p.Text("properties");
  EmitProperties(*entry.dtype, p);
  p.Text("size");
  p.TorchSize(entry.shape);
  p.Text("chunks");
  p.BeginList();
  for (const auto& [box, zip] : entry.chunks) {
    p.BeginObject(kModule, "ChunkStorageMetadata");
    p.BeginDict();
    p.Text("offsets");
    p.TorchSize(box.offset);
    p.Text("sizes");
    p.TorchSize(box.extent);
    p.EndDict();
    p.EndObject();
  }
  p.EndList();
  p.EndDict();
  p.EndObject();
}

void EmitPlace(const DcpEntry& entry, size_t chunk, const StoredTarget& target, PickleEmitter& p) {
  p.BeginObject(kModule, "MetadataIndex");
  p.BeginDict();
  p.Entry("fqn", entry.name);
  p.Text("offset");
  entry.dtype ? p.TorchSize(entry.chunks[chunk].first.offset) : p.None();
  p.Text("index");
  entry.dtype ? p.Int(static_cast<int64_t>(chunk)) : p.None();
  p.EndDict();
  p.EndObject();
  const TargetContainer& zip = target.containers[entry.chunks[chunk].second];
  const std::string& file = target.files[zip.file].name;
  p.BeginObject("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  p.BeginDict();
  p.Entry("relative_path", file.substr(file.rfind('/') + 1));
  p.Entry("offset", zip.offset);
  p.Entry("length", zip.layout->bytes());
  p.EndDict();
  p.EndObject();
}

void EmitPaths(const std::vector<DcpEntry>& entries, PickleEmitter& p) {
  const bool flattened = std::ranges::any_of(entries, [](const DcpEntry& e) { return !e.path.empty(); });
  if (!flattened) return p.None();
  p.BeginDict();
  for (const DcpEntry& entry : entries) {
    p.Text(entry.name);
    p.BeginTuple();
    for (const auto& part : entry.path) p.Json(part);
    p.EndTuple();
  }
  p.EndDict();
}

}  // namespace

std::string DcpMetadata(const std::vector<DcpEntry>& entries, const StoredTarget& target) {
  PickleEmitter p;
  p.BeginObject(kModule, "Metadata");
  p.BeginDict();
  p.Text("state_dict_metadata");
  p.BeginDict();
  for (const DcpEntry& entry : entries) {
    p.Text(entry.name);
    entry.dtype ? EmitTensor(entry, p) : p.BeginObject(kModule, "BytesStorageMetadata");
  }
  p.EndDict();
  p.Text("planner_data");
  EmitPaths(entries, p);
  p.Text("storage_data");
  p.BeginDict();
  for (const DcpEntry& entry : entries)
    for (size_t i = 0; i < entry.chunks.size(); ++i) EmitPlace(entry, i, target, p);
  p.EndDict();
  p.Entry("storage_meta", nullptr);
  p.Entry("version", kVersion);
  p.EndDict();
  p.EndObject();
  return p.Finish();
}

}  // namespace cairn
