// A state is laid out before it has memory, which its user provides. A save takes the trainer's own steps:
// copy into the arena; then a background thread writes the shard, seals the step and publishes it. In lazy
// mode the calling thread computes meanwhile, without memory traffic, and then waits for the rest of the
// copy; its stall is what it took to start the copy and to wait for it. A saved step is verified past the
// page cache.

#include "tests/bench/bench_state.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "ckpt/io/past_cache_file.h"
#include "ckpt/io/read_only_file_system.h"
#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/shard_image.h"
#include "ckpt/step/verify.h"
#include "runtime/control/background_thread.h"
#include "tests/bench/bench_rounds.h"

namespace cairn {
namespace {

constexpr uint64_t kAlign = 64;  // what tensor libraries give
constexpr uint64_t kStateBytesPerParameter = 14;
constexpr double kComputedBytesPerSecond = 1e9;  // a tenth of a memcpy; a step of training takes longer still
const StepIdentity kIdentity{"00000000000000000000000000000001", 1};
const std::string kNonce = "bench";

// About 24 layers, or fewer of a smaller model, and a tenth of the parameters in the vocabulary, which TP
// divides.
ModelShape ShapeFor(uint64_t bytes) {
  const double parameters = static_cast<double>(bytes) / kStateBytesPerParameter;
  const double width = std::sqrt(parameters * 0.9 / (24 * 12));
  ModelShape shape{.hidden = std::max<int64_t>(1, static_cast<int64_t>(width) / 64) * 64,
                   .vocab_multiple = 0};
  shape.head_dim = 16;
  shape.heads = shape.hidden / shape.head_dim;
  const double h = static_cast<double>(shape.hidden);
  shape.layers = std::max<int64_t>(2, static_cast<int64_t>(parameters * 0.9 / (12 * h * h)));
  const double rest = parameters - 12 * h * h * static_cast<double>(shape.layers);
  shape.positions = std::clamp<int64_t>(static_cast<int64_t>(std::max(0.0, rest / h / 16)), 1, 1024);
  const auto rows = static_cast<int64_t>(std::max(0.0, rest / h));
  shape.vocab = std::max<int64_t>(1, (rows - std::min(rows, shape.positions)) / 64) * 64;
  return shape;
}

void LayOut(BenchState& state) {
  for (const TensorEntry& tensor : state.tensors) {
    state.offsets.push_back(state.memory_bytes);
    state.tensor_bytes += tensor.bytes();
    state.memory_bytes = (state.memory_bytes + tensor.bytes() + kAlign - 1) / kAlign * kAlign;
  }
  state.memory_bytes = PageUp(state.memory_bytes);
}

// Keeps a core as busy as training does, without taking memory bandwidth from the copy.
void ComputeFor(double seconds) {
  volatile double x = 1;
  for (const Stopwatch watch; watch.Seconds() < seconds;)
    for (int i = 0; i < 1000; ++i) x = x * 1.0000001;
}

// Reads from the disk, so that the stored bytes are verified.
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
  const ModelShape shape = ShapeFor(bytes);
  BenchState state;
  state.model = {{"architecture", "gpt2"},
                 {"num_layers", shape.layers},
                 {"hidden_size", shape.hidden},
                 {"num_attention_heads", shape.heads},
                 {"ffn_hidden_size", shape.Ffn()},
                 {"vocab_size", shape.vocab},
                 {"max_position_embeddings", shape.positions},
                 {"tied_embeddings", true},
                 {"layernorm_epsilon", 1e-5}};
  for (const ParameterSpec& spec : GptSpecs(shape)) {
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

std::string SavedStep(const std::string& run_dir) { return JoinPath(run_dir, StepDirName(kIdentity.step)); }

Result<StateSaver> StateSaver::Make(const BenchState& state) {
  std::vector<Piece> pieces;
  std::vector<Snapshot::Source> sources;
  for (uint32_t i = 0; i < state.tensors.size(); ++i) {
    const Dims& shape = state.tensors[i].spec.shape;
    pieces.push_back({.tensor = i, .box = Box::Whole(shape), .range = {0, shape.Volume()}});
    sources.push_back({.part = 0, .offset = state.offsets[i]});
  }
  CAIRN_ASSIGN_OR_RETURN(ShardPlan plan,
                         ShardPlan::Make(ShardName(0), kIdentity, state.tensors, std::move(pieces)));
  CAIRN_ASSIGN_OR_RETURN(auto snapshot, Snapshot::Make(std::move(plan), std::move(sources), {}));
  return StateSaver(state, std::move(snapshot));
}

Result<SaveSeconds> StateSaver::Save(const std::string& run_dir, bool lazy) {
  const std::string partial = JoinPath(run_dir, PartialDirName(kIdentity.step, kNonce));
  CAIRN_RETURN_IF_ERROR(MakeDirs(FileSystem::Posix(), partial));
  const std::vector<Snapshot::Base> bases = {{.data = state_->memory.data()}};
  SaveSeconds seconds;
  const Stopwatch durable, stall;
  if (lazy)
    snapshot_->CopyBehind(kIdentity, bases);
  else
    snapshot_->CopyNow(kIdentity, bases);
  seconds.stall = stall.Seconds();

  Status flushed;
  std::thread saver([&] {
    BecomeBackgroundThread();
    flushed = Flush(run_dir, seconds);
    seconds.durable = durable.Seconds();
  });
  if (lazy) {
    ComputeFor(static_cast<double>(state_->tensor_bytes) / kComputedBytesPerSecond);
    const Stopwatch rest;
    snapshot_->Complete();
    seconds.stall += rest.Seconds();
  }
  saver.join();
  CAIRN_RETURN_IF_ERROR(flushed);
  return seconds;
}

Status StateSaver::Flush(const std::string& run_dir, SaveSeconds& seconds) {
  FileSystem& fs = FileSystem::Posix();
  Committer committer(fs, run_dir, kIdentity.step, kNonce);
  const Stopwatch flush;
  if (!snapshot_->takes_digests()) snapshot_->plan().Bind(kIdentity);
  CAIRN_ASSIGN_OR_RETURN(
      const ShardReceipt receipt,
      WriteShardImage(fs, committer.partial(), snapshot_->plan(), snapshot_->image(),
                      {.take_digests = !snapshot_->takes_digests(),
                       .wait_for = [this](uint64_t end) { return snapshot_->WaitFor(end); }}));
  seconds.flush = flush.Seconds();
  const Stopwatch commit;
  const StepInfo info{kIdentity, {}, state_->model, {{"iteration", kIdentity.step}}};
  CAIRN_ASSIGN_OR_RETURN(StepSeal seal, MakeSeal(info, state_->tensors, {receipt}, &views_));
  CAIRN_RETURN_IF_ERROR(committer.Commit(seal));
  seconds.commit = commit.Seconds();
  return OkStatus();
}

Status RemoveRun(const std::string& run_dir) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_dir));
  for (const std::string& name : names) {
    const std::string path = JoinPath(run_dir, name);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
    CAIRN_RETURN_IF_ERROR(info.is_directory() ? RemoveTree(fs, path) : fs.RemoveFile(path));
  }
  return fs.RemoveDir(run_dir);
}

Result<uint64_t> VerifySaved(const std::string& step_dir) {
  PastCacheFileSystem fs;
  CAIRN_ASSIGN_OR_RETURN(const auto reader, StepReader::Open(fs, step_dir));
  CAIRN_RETURN_IF_ERROR(VerifyStructure(*reader).status());
  const VerifyReport hash = VerifyHash(fs, *reader);
  CAIRN_RETURN_IF_ERROR(hash.status());
  return hash.bytes_checked;
}

Result<double> LoadState(const std::string& step_dir, const BenchState& state) {
  const Stopwatch watch;
  CAIRN_ASSIGN_OR_RETURN(const auto reader, StepReader::Open(FileSystem::Posix(), step_dir));
  const std::vector<TensorEntry>& tensors = reader->catalog().tensors;
  if (tensors.size() != state.tensors.size())
    return Corrupt("{} holds {} tensors, the state has {}", step_dir, tensors.size(), state.tensors.size());
  std::vector<ReadRequest> requests;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] != state.tensors[i])
      return Corrupt("{}: tensor {} is not the state's", step_dir, DisplayName(tensors[i]));
    requests.push_back({i, Box::Whole(tensors[i].spec.shape), state.bytes_of(i)});
  }
  CAIRN_RETURN_IF_ERROR(reader->Load(requests));
  return watch.Seconds();
}

}  // namespace cairn
