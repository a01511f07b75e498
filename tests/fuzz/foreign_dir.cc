// Directories of other systems' checkpoints, opened as `cairn convert` opens them: DCP, Megatron-Core,
// DeepSpeed, universal, Hugging Face; and, if there is a config.json, under the names of its type, as with
// --config (w.pt). An input is a directory: for each file a u16 and its name, a u32 and
// its bytes; what an attacker must get right by hand, checksums of zip records, may be left out (0).
#include "convert/foreign/expert_census.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/systems.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxBoxBytes = 1 << 16;
constexpr size_t kMaxBoxes = 64;

void Unpack(std::string_view input, MemoryFileSystem& fs) {
  const auto take = [&](uint64_t count) {
    const std::string_view taken = input.substr(0, count);
    input.remove_prefix(taken.size());
    return taken;
  };
  const auto number = [&](uint64_t bytes) {
    uint64_t value = 0;
    const std::string_view raw = take(bytes);
    std::memcpy(&value, raw.data(), raw.size());
    return value;
  };
  while (!input.empty()) {
    const std::string_view name = take(number(2));
    fs.files["ckpt/" + std::string(name)] = take(number(4));
  }
}

void Read(CheckpointSource& source) {
  (void)TakeCensus(source.catalog().tensors, source.manifest().model);
  std::vector<std::byte> out;
  size_t boxes = 0;
  for (uint32_t i = 0; i < source.catalog().tensors.size() && boxes < kMaxBoxes; ++i) {
    const TensorEntry& tensor = source.catalog().tensors[i];
    if (tensor.bytes() > kMaxBoxBytes) continue;
    out.resize(tensor.bytes());
    (void)source.ReadBox(i, Box::Whole(tensor.spec.shape), out);
    ++boxes;
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() { return {}; }

std::vector<std::string> FuzzWords() {
  return {Little(9, 2) + ".metadata",
          Little(12, 2) + "__0_0.distcp",
          Little(13, 2) + "metadata.json",
          Little(11, 2) + "config.json",
          Little(17, 2) + "pytorch_model.bin",
          Little(28, 2) + "model_world_size_1_rank_0.pt",
          Little(26, 2) + "mp_rank_00_model_states.pt",
          "PK\3\4",
          "\x80\x02",
          "X" + Little(6, 4) + "module",
          "X" + Little(12, 4) + "param_shapes",
          "K\1",
          "\x8a\x08" + Little(uint64_t{1} << 61, 8),
          "\x8a\x08" + Little(INT64_MAX, 8),
          "\"hidden_size\": 0",
          "\"num_attention_heads\": 0",
          "\"num_hidden_layers\": 1000000000",
          "\"num_local_experts\": 0",
          "\"num_local_experts\": 4611686018427387904",
          "\"num_experts_per_tok\": 0",
          "\"model_type\": \"deepseek_v3\"",
          "\"model_type\": \"minimax_m2\"",
          ".mlp.experts.0.",
          ".mlp.experts.gate_up_proj",
          "-1",
          "0",
          "1",
          "null"};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  MemoryFileSystem fs;
  Unpack(TextOf(data, size), fs);
  const char* path = fs.files.contains("ckpt/w.pt") ? "ckpt/w.pt" : "ckpt";
  OpenOptions options{.allow = {"ranks"}};
  auto source = OpenForeign(fs, path, options);
  if (source.ok()) Read(**source);
  options.config = "ckpt/config.json";
  if (source.ok() && fs.files.contains(options.config) && !(*source)->manifest().model.architecture) {
    source = ReadByConfig(fs, *std::move(source), options);
    if (source.ok()) Read(**source);
  }
  if (!source.ok()) FuzzCheck(!source.status().message().empty());
  return 0;
}
