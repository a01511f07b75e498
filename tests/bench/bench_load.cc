#include <cstring>

#include "ckpt/model/layout.h"
#include "tests/bench/bench_disk.h"
#include "tests/bench/bench_memory.h"
#include "tests/bench/bench_save.h"
#include "tests/bench/bench_state.h"

namespace cairn {
namespace {

// A step on disk, and the two ways to read it.
class LoadBench {
 public:
  // All reads go into `scratch`, whose size is the shard's.
  LoadBench(std::string run_dir, const BenchState& state, std::span<std::byte> scratch)
      : run_dir_(std::move(run_dir)), state_(state), scratch_(scratch), loaded_(state) {
    loaded_.memory = scratch.first(state.memory_bytes);
  }
  ~LoadBench() { (void)RemoveRun(run_dir_); }

  std::string shard() const { return JoinPath(SavedStep(run_dir_), ShardName(0)); }
  // Whether a cold read can be timed here: not where files live in memory.
  bool CanBeCold() const { return MakeCold(shard()).ok(); }

  Contender Raw(const std::string& name, bool warm, const RawTransfer& how) {
    return {name, [this, name, warm, how](Samples& samples) -> Status {
              CAIRN_RETURN_IF_ERROR(Bring(warm));
              CAIRN_ASSIGN_OR_RETURN(const double seconds, RawRead(shard(), scratch_, how));
              samples.Add(name, scratch_.size(), seconds);
              return OkStatus();
            }};
  }

  Contender Ours(const std::string& name, bool warm) {
    return {name, [this, name, warm](Samples& samples) -> Status {
              CAIRN_RETURN_IF_ERROR(Bring(warm));
              std::memset(loaded_.memory.data(), 0, loaded_.memory.size());
              CAIRN_ASSIGN_OR_RETURN(const double seconds, LoadState(SavedStep(run_dir_), loaded_));
              for (size_t i = 0; i < state_.tensors.size(); ++i)
                if (std::memcmp(state_.bytes_of(i).data(), loaded_.bytes_of(i).data(),
                                state_.bytes_of(i).size()) != 0)
                  return Corrupt("{}: tensor {} was loaded wrong", shard(), DisplayName(state_.tensors[i]));
              compared_ += state_.tensor_bytes;
              samples.Add(name, state_.tensor_bytes, seconds);
              return OkStatus();
            }};
  }

  uint64_t compared_bytes() const { return compared_; }

 private:
  Status Bring(bool warm) const { return warm ? MakeWarm(shard()) : MakeCold(shard()); }

  const std::string run_dir_;
  const BenchState& state_;
  std::span<std::byte> scratch_;
  BenchState loaded_;
  uint64_t compared_ = 0;
};

}  // namespace

Result<BenchResult> MeasureLoad(const BenchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(options, options.bytes / 10 * 12, options.bytes / 10 * 33));
  BenchState state = GptLikeState(options.bytes);
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer memory, WarmBuffer::Make(state.memory_bytes));
  state.memory = memory.bytes();
  FillWithNoise(memory.bytes(), 1);
  CAIRN_ASSIGN_OR_RETURN(StateSaver saver, StateSaver::Make(state));

  const ScratchFile run(options.dir);
  LoadBench bench(run.path(), state, saver.image());
  CAIRN_RETURN_IF_ERROR(saver.Save(run.path(), false).status());
  CAIRN_ASSIGN_OR_RETURN(const bool direct, TakesDirect(options.dir));
  const bool cold = direct && bench.CanBeCold();
  std::vector<Contender> contenders = {
      bench.Raw("page_cache_read_1", true, {.depth = 1, .direct = false}),
      bench.Raw("page_cache_read_2", true, {.depth = 2, .direct = false}),
      bench.Ours("load_warm", true),
  };
  if (cold) {
    using Engine = RawTransfer::Engine;
    contenders.push_back(bench.Raw("direct_read_threads", false, {.engine = Engine::kThreads}));
    if (TakesUring()) contenders.push_back(bench.Raw("direct_read_uring", false, {.engine = Engine::kUring}));
    contenders.push_back(bench.Ours("load_cold", false));
  }
  CAIRN_ASSIGN_OR_RETURN(Samples samples, RunRounds(contenders, options.rounds, TellOnTerminal()));
  const Series& read = *samples.Faster("page_cache_read_1", "page_cache_read_2");
  std::vector<GoalRatio> goals = {BandwidthGoal("load_warm_ratio", "verified load / " + read.name,
                                                *samples.Find("load_warm"), read, 0.95)};
  if (cold) {
    const Series& raw = *samples.Faster("direct_read_threads", "direct_read_uring");
    goals.push_back(BandwidthGoal("load_cold_ratio", "verified load, file not in memory / " + raw.name,
                                  *samples.Find("load_cold"), raw, 0.98));
  }
  return BenchResult{std::move(samples), std::move(goals), bench.compared_bytes()};
}

}  // namespace cairn
