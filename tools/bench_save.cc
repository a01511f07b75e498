#include "tools/bench_save.h"

#include <optional>

#include "ckpt/shard_image.h"
#include "tools/bench_disk.h"
#include "tools/bench_memory.h"
#include "tools/bench_state.h"

namespace cairn {
namespace {

// The raw writer's as ours: depth and size of a write.
RawTransfer AsOurs(RawTransfer::Engine engine, bool direct) {
  const ImageWriteOptions ours;
  return {.engine = engine, .depth = ours.queue.depth, .block = ours.write_bytes, .direct = direct};
}

// One save, verified before its times count, and removed.
Status TimeSave(const BenchOptions& options, const BenchState& state, std::span<std::byte> arena,
                Samples& samples) {
  const ScratchFile run(options.dir);  // a name; the directory is removed below
  const auto save = [&]() -> Result<SaveSeconds> {
    CAIRN_ASSIGN_OR_RETURN(const SaveSeconds seconds, SaveState(run.path(), state, arena));
    CAIRN_RETURN_IF_ERROR(VerifySaved(SavedStep(run.path())));
    return seconds;
  };
  const Result<SaveSeconds> seconds = save();
  CAIRN_RETURN_IF_ERROR(RemoveRun(run.path()));
  if (!seconds.ok()) return seconds.status();
  samples.Add("plan", state.tensor_bytes, seconds->plan);
  samples.Add("stall", state.tensor_bytes, seconds->copy);
  samples.Add("flush", state.tensor_bytes, seconds->flush);
  samples.Add("commit", state.tensor_bytes, seconds->commit);
  return OkStatus();
}

}  // namespace

Result<BenchResult> MeasureSave(const BenchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(options, options.bytes / 10 * 12, options.bytes / 10 * 22));
  BenchState state = GptLikeState(options.bytes);
  CAIRN_ASSIGN_OR_RETURN(const uint64_t arena_bytes, ArenaBytes(state));
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer memory, WarmBuffer::Make(state.memory_bytes));
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer arena, WarmBuffer::Make(arena_bytes));
  state.memory = memory.bytes();
  FillWithNoise(memory.bytes(), 1);
  FillWithNoise(arena.bytes(), 2);
  CAIRN_ASSIGN_OR_RETURN(const bool direct, TakesDirect(options.dir));

  std::vector<Contender> contenders = {
      {"memcpy",
       [&](Samples& samples) {
         const Stopwatch watch;
         CopyBy(1, arena.bytes().first(state.memory_bytes), memory.bytes());
         samples.Add("memcpy", state.memory_bytes, watch.Seconds());
         return OkStatus();
       }},
      {"ours", [&](Samples& samples) { return TimeSave(options, state, arena.bytes(), samples); }}};
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
               *samples.Find("memcpy"), 1.05)};
  return BenchResult{std::move(samples), std::move(goals)};
}

}  // namespace cairn
