#include "tests/bench/bench_save.h"

#include "ckpt/step/shard_image.h"
#include "tests/bench/bench_disk.h"
#include "tests/bench/bench_memory.h"
#include "tests/bench/bench_state.h"

namespace cairn {
namespace {

// The raw writer's as ours: depth and size of a write.
RawTransfer AsOurs(RawTransfer::Engine engine, bool direct) {
  const ImageWriteOptions ours;
  return {.engine = engine, .depth = ours.queue.depth, .block = ours.write_bytes, .direct = direct};
}

// One save, verified before its times count, and removed.
Result<SaveSeconds> TimeSave(const BenchOptions& options, StateSaver& saver, bool lazy, uint64_t& verified) {
  const ScratchFile run(options.dir);  // a name; the directory is removed here
  const auto save = [&]() -> Result<SaveSeconds> {
    CAIRN_ASSIGN_OR_RETURN(const SaveSeconds seconds, saver.Save(run.path(), lazy));
    CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, VerifySaved(SavedStep(run.path())));
    verified += bytes;
    return seconds;
  };
  const Result<SaveSeconds> seconds = save();
  CAIRN_RETURN_IF_ERROR(RemoveRun(run.path()));
  return seconds;
}

}  // namespace

Result<BenchResult> MeasureSave(const BenchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(options, options.bytes / 10 * 12, options.bytes / 10 * 22));
  BenchState state = GptLikeState(options.bytes);
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer memory, WarmBuffer::Make(state.memory_bytes));
  state.memory = memory.bytes();
  FillWithNoise(memory.bytes(), 1);
  CAIRN_ASSIGN_OR_RETURN(StateSaver saver, StateSaver::Make(state));
  CAIRN_ASSIGN_OR_RETURN(const bool direct, TakesDirect(options.dir));

  uint64_t verified = 0;
  std::vector<Contender> contenders = {
      {"memcpy",
       [&](Samples& samples) {
         const Stopwatch watch;
         CopyBy(1, saver.image().first(state.memory_bytes), memory.bytes());
         samples.Add("memcpy", state.memory_bytes, watch.Seconds());
         return OkStatus();
       }},
      {"copy",
       [&](Samples& samples) -> Status {
         CAIRN_ASSIGN_OR_RETURN(const SaveSeconds seconds, TimeSave(options, saver, false, verified));
         samples.Add("stall", state.tensor_bytes, seconds.stall);
         samples.Add("flush", state.tensor_bytes, seconds.flush);
         samples.Add("commit", state.tensor_bytes, seconds.commit);
         samples.Add("durable", state.tensor_bytes, seconds.durable);
         return OkStatus();
       }},
      {"lazy", [&](Samples& samples) -> Status {
         CAIRN_ASSIGN_OR_RETURN(const SaveSeconds seconds, TimeSave(options, saver, true, verified));
         samples.Add("lazy_stall", state.tensor_bytes, seconds.stall);
         samples.Add("lazy_durable", state.tensor_bytes, seconds.durable);
         return OkStatus();
       }}};
  const auto add_raw = [&](const std::string& name, RawTransfer::Engine engine) {
    contenders.push_back({name, [&, name, engine](Samples& samples) -> Status {
                            const ScratchFile file(options.dir);
                            CAIRN_ASSIGN_OR_RETURN(const double seconds, RawWrite(file.path(), memory.bytes(),
                                                                                  AsOurs(engine, direct)));
                            samples.Add(name, state.memory_bytes, seconds);
                            return OkStatus();
                          }});
  };
  add_raw("raw_threads", RawTransfer::Engine::kThreads);
  if (TakesUring()) add_raw("raw_uring", RawTransfer::Engine::kUring);

  CAIRN_ASSIGN_OR_RETURN(Samples samples, RunRounds(contenders, options.rounds, TellOnTerminal()));
  const Series& raw = *samples.Faster("raw_threads", "raw_uring");
  std::vector<GoalRatio> goals = {
      BandwidthGoal("flush_ratio", "durable flush with digests / " + raw.name + ", the faster raw writer",
                    *samples.Find("flush"), raw, 0.98),
      TimeGoal("stall_ratio", "copy into the arena / memcpy of as much", *samples.Find("stall"),
               *samples.Find("memcpy"), 1.05),
      TimeGoal("lazy_stall_ratio", "what a lazy save makes the trainer wait / memcpy of as much",
               *samples.Find("lazy_stall"), *samples.Find("memcpy"), 0.02)};
  return BenchResult{std::move(samples), std::move(goals), verified};
}

}  // namespace cairn
