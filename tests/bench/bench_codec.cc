#include "tests/bench/bench_codec.h"

#include <algorithm>
#include <map>

#include "ckpt/codec/codec_policy.h"
#include "convert/stream/block_stream.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

constexpr uint64_t kBlockBytes = 4 * kChunkBytes;  // in memory at a time

std::map<std::string, std::vector<uint32_t>> TensorsByClass(const TensorTable& catalog) {
  std::map<std::string, std::vector<uint32_t>> classes;
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorEntry& tensor = catalog.tensors[i];
    if (tensor.role == Role::kRng) continue;
    classes[fmt::format("{}_{}", Name(tensor.role), Name(tensor.dtype))].push_back(i);
  }
  return classes;
}

// The codec on these tensors, block by block, until `max_bytes` are done.
Result<CodecSpeed> MeasureTensors(StepReader& step, const std::vector<uint32_t>& tensors,
                                  uint64_t max_bytes) {
  CodecSpeed total;
  std::vector<std::byte> block(kBlockBytes);
  for (const uint32_t index : tensors) {
    const TensorEntry& tensor = step.catalog().tensors[index];
    const uint64_t element_bytes = SizeOf(tensor.dtype);
    for (BlockCursor at(tensor.spec.shape, kBlockBytes / element_bytes); !at.done(); at.Advance()) {
      if (total.bytes >= max_bytes) return total;
      const std::span bytes(block.data(), at.box().Volume() * element_bytes);
      CAIRN_RETURN_IF_ERROR(step.ReadBox(index, at.box(), bytes));
      total += MeasureCodec(bytes, element_bytes);
    }
  }
  return total;
}

}  // namespace

Result<CodecBench> MeasureCheckpointCodec(const BenchOptions& options, const std::string& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened,
                         OpenAnyCkpt(FileSystem::Posix(), checkpoint, {.format = "native"}));
  CodecBench bench;
  const auto tensors = TensorsByClass(opened.step.reader->catalog());
  for (const auto& [name, indices] : tensors) bench.classes.push_back({name});
  std::vector<Contender> contenders;
  for (CodecClass& each : bench.classes)
    contenders.push_back({each.name, [&](Samples& samples) -> Status {
                            CAIRN_ASSIGN_OR_RETURN(
                                const CodecSpeed speed,
                                MeasureTensors(*opened.step.reader, tensors.at(each.name), options.bytes));
                            each.bytes = speed.bytes;
                            each.stored_bytes = speed.stored_bytes;
                            bench.result.verified_bytes += speed.bytes;
                            samples.Add(each.name + "_in", speed.bytes, speed.encode_seconds);
                            samples.Add(each.name + "_out", speed.bytes, speed.decode_seconds);
                            return OkStatus();
                          }});
  CAIRN_ASSIGN_OR_RETURN(bench.result.samples, RunRounds(contenders, options.rounds, TellOnTerminal()));
  return bench;
}

}  // namespace cairn
