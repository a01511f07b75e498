#include "tools/bench_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ckpt/layout.h"
#include "ckpt/shard_image.h"
#include "ckpt/verify.h"
#include "tools/bench_rounds.h"
#include "tools/past_cache_file.h"
#include "tools/read_only_file_system.h"

namespace cairn {
namespace {

constexpr uint64_t kAlign = 64;  // what tensor libraries give
constexpr uint64_t kBytesPerParameter = 14;
const StepIdentity kIdentity{"00000000000000000000000000000001", 1};

struct GptSizes {
  uint64_t hidden, layers, vocab, positions;
};

// About 24 layers, or fewer of a smaller model, and a tenth of the parameters in the vocabulary.
GptSizes SizesFor(uint64_t bytes) {
  const double parameters = static_cast<double>(bytes) / kBytesPerParameter;
  const double width = std::sqrt(parameters * 0.9 / (24 * 12));
  GptSizes sizes{.hidden = std::max<uint64_t>(1, static_cast<uint64_t>(width) / 64) * 64, .positions = 1024};
  const double h = static_cast<double>(sizes.hidden);
  sizes.layers = std::max<uint64_t>(1, static_cast<uint64_t>(parameters * 0.9 / (12 * h * h)));
  const double rest = parameters - 12 * h * h * static_cast<double>(sizes.layers);
  sizes.positions = std::clamp<uint64_t>(static_cast<uint64_t>(rest / h / 16), 1, 1024);
  sizes.vocab =
      std::max<uint64_t>(1, static_cast<uint64_t>(rest / h) - std::min<uint64_t>(rest / h, sizes.positions));
  return sizes;
}

std::vector<ParameterSpec> GptParameters(const GptSizes& sizes) {
  const uint64_t h = sizes.hidden;
  std::vector<ParameterSpec> specs = {{.name = "embedding.word.weight", .shape = {sizes.vocab, h}},
                                      {.name = "embedding.position.weight", .shape = {sizes.positions, h}}};
  for (int layer = 0; layer < static_cast<int>(sizes.layers); ++layer) {
    const auto add = [&](const char* name, Dims shape) {
      specs.push_back({.name = fmt::format("layers.{}.{}", layer, name), .shape = shape, .layer = layer});
    };
    add("input_norm.weight", {h}), add("input_norm.bias", {h});
    for (const char* name : {"attention.query", "attention.key", "attention.value", "attention.output"}) {
      add(fmt::format("{}.weight", name).c_str(), {h, h});
      add(fmt::format("{}.bias", name).c_str(), {h});
    }
    add("post_attention_norm.weight", {h}), add("post_attention_norm.bias", {h});
    add("mlp.up.weight", {4 * h, h}), add("mlp.up.bias", {4 * h});
    add("mlp.down.weight", {h, 4 * h}), add("mlp.down.bias", {h});
  }
  specs.push_back({.name = "final_norm.weight", .shape = {h}, .layer = kAfterLayers});
  specs.push_back({.name = "final_norm.bias", .shape = {h}, .layer = kAfterLayers});
  return specs;
}

void LayOut(BenchState& state) {
  for (const TensorEntry& tensor : state.tensors) {
    state.offsets.push_back(state.memory_bytes);
    state.tensor_bytes += tensor.bytes();
    state.memory_bytes = (state.memory_bytes + tensor.bytes() + kAlign - 1) / kAlign * kAlign;
  }
  state.memory_bytes = PageUp(state.memory_bytes);
}

Result<ShardPlan> PlanOf(const BenchState& state) {
  std::vector<Piece> pieces;
  for (uint32_t i = 0; i < state.tensors.size(); ++i)
    pieces.push_back({.tensor = i,
                      .box = Box::Whole(state.tensors[i].spec.shape),
                      .range = {0, state.tensors[i].spec.shape.Volume()}});
  return ShardPlan::Make(ShardName(0), kIdentity, state.tensors, std::move(pieces));
}

// Reads from the disk, so that what is verified is what was stored.
class PastCacheFileSystem final : public ReadOnlyFileSystem {
 public:
  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct) override {
    return OpenPastCache(FileSystem::Posix(), path);
  }
  Result<FileInfo> Stat(const std::string& path) override { return FileSystem::Posix().Stat(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return FileSystem::Posix().List(path);
  }
};

}  // namespace

BenchState GptLikeState(uint64_t bytes) {
  const GptSizes sizes = SizesFor(bytes);
  BenchState state;
  state.model = {{"architecture", "gpt2"},
                 {"num_layers", sizes.layers},
                 {"hidden_size", sizes.hidden},
                 {"num_attention_heads", sizes.hidden / 64},
                 {"ffn_hidden_size", 4 * sizes.hidden},
                 {"vocab_size", sizes.vocab},
                 {"max_position_embeddings", sizes.positions},
                 {"tied_embeddings", true},
                 {"layernorm_epsilon", 1e-5}};
  for (const ParameterSpec& spec : GptParameters(sizes)) {
    state.tensors.push_back({spec, Role::kWeight, Dtype::kBF16});
    for (const Role role : {Role::kMaster, Role::kExpAvg, Role::kExpAvgSq})
      state.tensors.push_back({spec, role, Dtype::kF32});
  }
  LayOut(state);
  return state;
}

BenchState StateLike(const StepReader& step) {
  BenchState state;
  state.model = step.manifest().model;
  state.tensors = step.catalog().tensors;
  LayOut(state);
  return state;
}

Result<uint64_t> ArenaBytes(const BenchState& state) {
  CAIRN_ASSIGN_OR_RETURN(const ShardPlan plan, PlanOf(state));
  return plan.file_bytes();
}

std::string SavedStep(const std::string& run_dir) { return JoinPath(run_dir, StepDirName(kIdentity.step)); }

Result<SaveSeconds> SaveState(const std::string& run_dir, const BenchState& state,
                              std::span<std::byte> arena) {
  FileSystem& fs = FileSystem::Posix();
  const std::string partial = JoinPath(run_dir, PartialDirName(kIdentity.step, "bench"));
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, partial));
  SaveSeconds seconds;
  Stopwatch plan_watch;
  CAIRN_ASSIGN_OR_RETURN(ShardPlan plan, PlanOf(state));
  seconds.plan = plan_watch.Seconds();

  const Stopwatch copy_watch;
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const std::span<const std::byte> bytes = state.bytes_of(i);
    std::memcpy(&arena[plan.OffsetOf(i)], bytes.data(), bytes.size());
  }
  seconds.copy = copy_watch.Seconds();

  const Stopwatch flush_watch;
  CAIRN_ASSIGN_OR_RETURN(const ShardReceipt receipt,
                         WriteShardImage(fs, partial, plan, arena.first(plan.file_bytes())));
  seconds.flush = flush_watch.Seconds();

  const Stopwatch commit_watch;
  const StepInfo info{kIdentity, {}, state.model, {{"iteration", kIdentity.step}}};
  CAIRN_RETURN_IF_ERROR(SealStep(fs, partial, info, state.tensors, {receipt}));
  CAIRN_RETURN_IF_ERROR(PublishStep(fs, run_dir, kIdentity.step, "bench"));
  seconds.commit = commit_watch.Seconds();
  return seconds;
}

Status RemoveRun(const std::string& run_dir) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_dir));
  for (const std::string& name : names) {
    const std::string path = JoinPath(run_dir, name);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
    CAIRN_RETURN_IF_ERROR(info.is_directory ? RemoveTree(fs, path) : fs.RemoveFile(path));
  }
  return fs.RemoveDir(run_dir);
}

Status VerifySaved(const std::string& step_dir) {
  PastCacheFileSystem fs;
  CAIRN_ASSIGN_OR_RETURN(const auto reader, StepReader::Open(fs, step_dir));
  for (const VerifyReport& report : {VerifyStructure(*reader), VerifyHash(fs, *reader)})
    if (!report.problems.empty()) return Corrupt("{}", ToString(report.problems.front()));
  return OkStatus();
}

Result<double> LoadState(const std::string& step_dir, const BenchState& state) {
  const Stopwatch watch;
  CAIRN_ASSIGN_OR_RETURN(const auto reader, StepReader::Open(FileSystem::Posix(), step_dir));
  const std::vector<TensorEntry>& tensors = reader->catalog().tensors;
  if (tensors.size() != state.tensors.size())
    return Corrupt("{} holds {} tensors, the state has {}", step_dir, tensors.size(), state.tensors.size());
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].bytes() != state.tensors[i].bytes())
      return Corrupt("{}: tensor {} is not the state's", step_dir, DisplayName(tensors[i]));
    CAIRN_RETURN_IF_ERROR(reader->ReadBox(i, Box::Whole(tensors[i].spec.shape), state.bytes_of(i)));
  }
  return watch.Seconds();
}

}  // namespace cairn
