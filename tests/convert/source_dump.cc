// source_dump CKPT OUT [--replicas first|mean] [--prove]: every tensor of a foreign checkpoint as raw bytes.
//
// For tests that compare our reading with the values of the system that wrote it. Writes OUT.bin (the tensors
// one after another) and OUT.json: the manifest's parts and a list of {name, role, dtype, shape, offset}.
#include <cstdio>
#include <cstring>
#include <fstream>

#include "convert/formats/systems.h"
#include "convert/stream/block_stream.h"
#include "convert/stream/master_proof.h"

namespace cairn {
namespace {

Status Dump(const std::string& path, const std::string& out, const OpenOptions& options, bool prove) {
  CAIRN_ASSIGN_OR_RETURN(const auto source, OpenForeign(FileSystem::Posix(), path, options));
  nlohmann::json tensors = nlohmann::json::array();
  std::ofstream bin(out + ".bin", std::ios::binary);
  uint64_t offset = 0;
  for (const TensorEntry& tensor : source->catalog().tensors) {
    tensors.push_back({{"name", tensor.spec.name},
                       {"role", Name(tensor.role)},
                       {"dtype", Name(tensor.dtype)},
                       {"shape", std::vector<uint64_t>(tensor.spec.shape.begin(), tensor.spec.shape.end())},
                       {"tp_dim", tensor.spec.cuts.empty() ? -1 : tensor.spec.cuts[0].dim},
                       {"offset", offset}});
    offset += tensor.bytes();
  }
  // Small blocks, so that tensors are read in many boxes.
  CAIRN_RETURN_IF_ERROR(StreamBlocks(*source, AllTensors(source->catalog()), 1000, [&](const Block& block) {
    bin.write(reinterpret_cast<const char*>(block.bytes.data()),
              static_cast<std::streamsize>(block.bytes.size()));
    return OkStatus();
  }));
  const Manifest& m = source->manifest();
  nlohmann::json json = {{"tensors", tensors},   {"model", m.model},    {"state", m.state},
                         {"history", m.history}, {"step", m.step},      {"tp", m.topology.tp},
                         {"pp", m.topology.pp},  {"dp", m.topology.dp}, {"zero", m.topology.zero}};
  if (prove) {
    CAIRN_ASSIGN_OR_RETURN(const size_t proven, ProveMasters(*source, 1 << 20));
    json["proven"] = proven;
  }
  std::ofstream(out + ".json") << json.dump(1);
  return OkStatus();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  cairn::OpenOptions options;
  bool prove = false;
  for (int i = 3; i < argc; ++i) {
    if (std::strcmp(argv[i], "--prove") == 0) prove = true;
    if (std::strcmp(argv[i], "first") == 0) options.replicas = cairn::Replicas::kFirst;
    if (std::strcmp(argv[i], "mean") == 0) options.replicas = cairn::Replicas::kMean;
  }
  const cairn::Status status = cairn::Dump(argv[1], argv[2], options, prove);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
