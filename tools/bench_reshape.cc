#include "tools/bench_reshape.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>

#include "convert/reshape.h"
#include "tools/bench_disk.h"
#include "tools/bench_memory.h"
#include "tools/bench_state.h"

namespace cairn {
namespace {

constexpr double kPeakGoalBytes = 320 << 20;
const Topology kSourceTopology{.tp = 2, .dp = 2};

struct ChildReport {
  double wall_seconds = 0;
  double peak_bytes = 0;
};

// `cairn reshape` with these arguments, which need no quoting; it prints JSON.
Result<ChildReport> RunReshape(const std::string& arguments) {
  const Stopwatch watch;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      ::popen(("\"$(readlink /proc/" + std::to_string(::getpid()) + "/exe)\" reshape " + arguments).c_str(),
              "r"),
      &::pclose);
  if (!pipe) return IoError("cannot start cairn reshape");
  std::string text;
  std::array<char, 4096> part;
  while (const size_t count = std::fread(part.data(), 1, part.size(), pipe.get()))
    text.append(part.data(), count);
  ChildReport report{.wall_seconds = watch.Seconds()};
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return IoError("cairn reshape {} failed", arguments);
  report.peak_bytes = json.value("peak_memory_bytes", 0.0);
  return report;
}

class ReshapeBench {
 public:
  ReshapeBench(std::string source, std::string target, std::string raw, std::span<std::byte> scratch)
      : source_(std::move(source)), target_(std::move(target)), raw_(std::move(raw)), scratch_(scratch) {}
  ~ReshapeBench() {
    (void)RemoveRun(source_);
    (void)RemoveRun(target_);
  }

  // A step of this state on several ranks.
  Status MakeSource(const std::string& saved) {
    CAIRN_ASSIGN_OR_RETURN(const auto reader, StepReader::Open(FileSystem::Posix(), SavedStep(saved)));
    CAIRN_RETURN_IF_ERROR(
        Reshape(FileSystem::Posix(), *reader, source_, {.target = kSourceTopology}).status());
    return RemoveRun(saved);
  }

  Contender Raw() {
    return {"read_then_write", [this](Samples& samples) -> Status {
              const auto engine = TakesUring() ? RawTransfer::Engine::kUring : RawTransfer::Engine::kThreads;
              const ScratchFile file(raw_);
              CAIRN_ASSIGN_OR_RETURN(const double write,
                                     RawWrite(file.path(), scratch_, {.engine = engine, .block = 4 << 20}));
              CAIRN_RETURN_IF_ERROR(MakeCold(file.path()));
              CAIRN_ASSIGN_OR_RETURN(const double read,
                                     RawRead(file.path(), scratch_, {.engine = engine, .block = 4 << 20}));
              samples.Add("read_then_write", scratch_.size(), read + write);
              samples.Add("two_reads_and_write", scratch_.size(), 2 * read + write);
              return OkStatus();
            }};
  }

  Contender Ours(const std::string& name, const std::string& flags) {
    return {name, [this, name, flags](Samples& samples) -> Status {
              CAIRN_RETURN_IF_ERROR(MakeSourceCold());
              CAIRN_ASSIGN_OR_RETURN(
                  const ChildReport report,
                  RunReshape(fmt::format("{} {} --tp 4 --pp 2 --dp 1 --json{}", source_, target_, flags)));
              samples.Add(name, scratch_.size(), report.wall_seconds);
              peaks_.push_back(report.peak_bytes / kPeakGoalBytes);
              CAIRN_ASSIGN_OR_RETURN(const uint64_t verified, VerifySaved(SavedStep(target_)));
              verified_ += verified;
              return RemoveRun(target_);
            }};
  }

  uint64_t verified_bytes() const { return verified_; }
  Spread peaks() const { return SpreadOf(peaks_); }

 private:
  Status MakeSourceCold() const {
    FileSystem& fs = FileSystem::Posix();
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(SavedStep(source_)));
    for (const std::string& name : names) CAIRN_RETURN_IF_ERROR(MakeCold(JoinPath(SavedStep(source_), name)));
    return OkStatus();
  }

  const std::string source_, target_, raw_;
  std::span<std::byte> scratch_;
  std::vector<double> peaks_;
  uint64_t verified_ = 0;
};

}  // namespace

Result<BenchResult> MeasureReshape(const BenchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(options, options.bytes / 10 * 33, options.bytes / 10 * 33));
  BenchState state = GptLikeState(options.bytes);
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer memory, WarmBuffer::Make(state.memory_bytes));
  state.memory = memory.bytes();
  FillWithNoise(memory.bytes(), 1);
  const ScratchFile saved(options.dir), source(options.dir), target(options.dir);
  ReshapeBench bench(source.path(), target.path(), options.dir, memory.bytes());
  {
    CAIRN_ASSIGN_OR_RETURN(StateSaver saver, StateSaver::Make(state));
    CAIRN_RETURN_IF_ERROR(saver.Save(saved.path(), false).status());
  }
  CAIRN_RETURN_IF_ERROR(bench.MakeSource(saved.path()));
  CAIRN_ASSIGN_OR_RETURN(Samples samples, RunRounds({bench.Raw(), bench.Ours("reshape", ""),
                                                     bench.Ours("reshape_not_read_back", " --no-read-back")},
                                                    options.rounds, TellOnTerminal()));
  const Series& raw = *samples.Find("read_then_write");
  std::vector<GoalRatio> goals = {
      TimeGoal("reshape_ratio", "reshape, proved by reading back / read + write", *samples.Find("reshape"),
               raw, 1.05),
      TimeGoal("reshape_proof_ratio", "the same / read + write + read", *samples.Find("reshape"),
               *samples.Find("two_reads_and_write"), 1.05),
      TimeGoal("reshape_stream_ratio", "reshape --no-read-back / read + write",
               *samples.Find("reshape_not_read_back"), raw, 1.05),
      {"reshape_peak_ratio", "peak memory / 320 MiB", bench.peaks(), 1.0, /*at_least=*/false}};
  return BenchResult{std::move(samples), std::move(goals), bench.verified_bytes()};
}

}  // namespace cairn
