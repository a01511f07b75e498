// One step with TP 2 and DP 2 is written before the rounds. Each measurement makes its files cold, runs
// `cairn reshape` as a process of its own, verifies the result from the disk and removes it. The process is
// timed as a whole, its start included; it reports its peak memory itself. Beside it stand a raw write and a
// cold raw read of about as many bytes, without which no reshape is possible.

#include "tests/bench/bench_reshape.h"

#include <fmt/ranges.h>

#include <cstring>
#include <filesystem>

#include "tests/bench/bench_disk.h"
#include "tests/bench/bench_memory.h"
#include "tests/bench/bench_state.h"
#include "tests/support/made_source.h"
#include "tools/process/child.h"

namespace cairn {
namespace {

constexpr double kPeakGoalBytes = 320 << 20;
const Topology kSourceTopology{.tp = 2, .dp = 2};

struct ChildReport {
  double wall_seconds = 0;
  double peak_bytes = 0;
};

// `cairn reshape`, by this program itself; it prints JSON.
Result<ChildReport> RunBenchReshape(std::vector<std::string> arguments) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return IoError("/proc/self/exe: {}", error.message());
  arguments.insert(arguments.begin(), {self.string(), "reshape"});
  const Stopwatch watch;
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ChildOutput(arguments));
  ChildReport report{.wall_seconds = watch.Seconds()};
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return IoError("{} printed no JSON", fmt::join(arguments, " "));
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

  // A step of about as many bytes as the scratch memory, whose bytes are its values.
  Status MakeSource() {
    const std::vector<TensorEntry> tensors = GptLikeState(scratch_.size()).tensors;
    const StepInfo info{.identity = {"00000000000000000000000000000001", 1}, .topology = kSourceTopology};
    for (const TensorEntry& tensor : tensors) bytes_ += tensor.bytes();
    return WriteMadeStep(source_, info, tensors,
                         [this](const TensorEntry&, uint64_t, std::span<std::byte> out) {
                           std::memcpy(out.data(), scratch_.data(), out.size());
                         });
  }

  Contender Raw() {
    return {"read_then_write", [this](Samples& samples) -> Status {
              const auto engine = TakesUring() ? RawTransfer::Engine::kUring : RawTransfer::Engine::kThreads;
              const ScratchFile file(raw_);
              const auto raw_bytes =
                  scratch_.first(std::min<uint64_t>(scratch_.size(), bytes_ / kPageBytes * kPageBytes));
              CAIRN_ASSIGN_OR_RETURN(const double write,
                                     RawWrite(file.path(), raw_bytes, {.engine = engine, .block = 4 << 20}));
              CAIRN_RETURN_IF_ERROR(MakeCold(file.path()));
              CAIRN_ASSIGN_OR_RETURN(const double read,
                                     RawRead(file.path(), raw_bytes, {.engine = engine, .block = 4 << 20}));
              samples.Add("read_then_write", bytes_, read + write);
              samples.Add("two_reads_and_write", bytes_, 2 * read + write);
              return OkStatus();
            }};
  }

  Contender Ours(const std::string& name, const std::vector<std::string>& flags) {
    return {name, [this, name, flags](Samples& samples) -> Status {
              CAIRN_RETURN_IF_ERROR(MakeSourceCold());
              std::vector<std::string> arguments = {source_, target_, "--tp", "4",     "--pp",
                                                    "2",     "--dp",  "1",    "--json"};
              arguments.insert(arguments.end(), flags.begin(), flags.end());
              CAIRN_ASSIGN_OR_RETURN(const ChildReport report, RunBenchReshape(std::move(arguments)));
              samples.Add(name, bytes_, report.wall_seconds);
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
  uint64_t bytes_ = 0;  // of the source's tensors
  uint64_t verified_ = 0;
};

}  // namespace

Result<BenchResult> MeasureReshape(const BenchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(options, options.bytes / 10 * 33, options.bytes / 10 * 14));
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer memory, WarmBuffer::Make(options.bytes));
  FillWithNoise(memory.bytes(), 1);
  const ScratchFile source(options.dir), target(options.dir);
  ReshapeBench bench(source.path(), target.path(), options.dir, memory.bytes());
  CAIRN_RETURN_IF_ERROR(bench.MakeSource());
  CAIRN_ASSIGN_OR_RETURN(Samples samples, RunRounds({bench.Raw(), bench.Ours("reshape", {}),
                                                     bench.Ours("reshape_not_read_back", {"--no-read-back"})},
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
