// The Add functions fill a list of contenders, which RunRounds then runs in turn. All share one source of
// noise and one target, both touched before. What needs new pages is timed in two states, as found and
// recycled (bench_memory.h says why). Reads are compared with the source after the clock has stopped.

#include "tests/bench/bench_limits.h"

#include <algorithm>

#include "ckpt/base/digest.h"
#include "convert/stream/fingerprint.h"
#include "tests/bench/bench_disk.h"
#include "tests/bench/bench_memory.h"

namespace cairn {
namespace {

using Engine = RawTransfer::Engine;

constexpr uint64_t kCachedBytes = 256 << 10;  // fits the second-level cache of any machine of interest

// Shared by all contenders: a warm source of noise, a warm target, and the directory.
class Limits {
 public:
  Limits(const BenchOptions& options, std::span<std::byte> source, std::span<std::byte> target)
      : options_(options), source_(source), target_(target) {}

  void AddMemory() {
    for (const int threads : {1, 2})
      Add(fmt::format("memcpy_{}", threads),
          [this, threads] { return Timed([&] { CopyBy(threads, target_, source_); }); });
    for (const bool huge : {false, true}) {
      const std::string name = huge ? "touch_huge_pages" : "touch_pages";
      AddInBothStates(name, [this, huge](const std::string& series, Samples& samples) -> Status {
        CAIRN_ASSIGN_OR_RETURN(const double seconds, TouchFresh(source_.size(), huge));
        samples.Add(series, source_.size(), seconds);
        return OkStatus();
      });
    }
  }

  void AddDigests() {
    Add("xxh3_128_cached", [this] {
      return Timed([&] {
        for (size_t at = 0; at < source_.size(); at += kCachedBytes)
          sink_ ^= DigestOf(source_.first(std::min<size_t>(kCachedBytes, source_.size())), at)[0];
      });
    });
    Add("xxh3_128_memory", [this] {
      return Timed([&] {
        for (size_t at = 0; at < source_.size(); at += kChunkBytes)
          sink_ ^= DigestOf(source_.subspan(at, std::min(kChunkBytes, source_.size() - at)))[0];
      });
    });
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const TensorEntry tensor{
          {.name = "x", .shape = {source_.size() / SizeOf(dtype)}}, Role::kWeight, dtype};
      Add(fmt::format("fingerprint_{}", Name(dtype)), [this, tensor] {
        return Timed([&] {
          TensorFingerprint fingerprint(tensor);
          fingerprint.Add(0, source_);
          sink_ ^= fingerprint.Finish(tensor)[0];
        });
      });
    }
  }

  void AddPageCache() {
    AddInBothStates("page_cache_write", [this](const std::string& series, Samples& samples) -> Status {
      const ScratchFile file(options_.dir);
      CAIRN_ASSIGN_OR_RETURN(const BufferedSeconds seconds, BufferedWrite(file.path(), source_));
      samples.Add(series, source_.size(), seconds.write);
      samples.Add(series + "_and_fsync", source_.size(), seconds.durable);
      return OkStatus();
    });
  }

  // Reads of `file`, which holds the source's bytes and lies in the page cache.
  void AddPageCacheReads(const std::string& file) {
    for (const int threads : {1, 2})
      Add(fmt::format("page_cache_read_{}", threads), [this, threads, &file]() -> Result<double> {
        CAIRN_RETURN_IF_ERROR(MakeWarm(file));
        return Read(file, {.depth = threads, .direct = false});
      });
  }

  void AddDirectWrites() {
    const auto add = [this](Engine engine, int depth, const char* name) {
      Add(fmt::format("direct_write_{}_{}", name, depth), [this, engine, depth]() -> Result<double> {
        const ScratchFile file(options_.dir);
        return RawWrite(file.path(), source_, {.engine = engine, .depth = depth});
      });
    };
    for (const int depth : {1, 2, 4, 8}) add(Engine::kThreads, depth, "threads");
    if (TakesUring()) add(Engine::kUring, 4, "uring");
  }

  // Reads of `file` past the page cache.
  void AddDirectReads(const std::string& file) {
    const auto add = [&](Engine engine, int depth, const char* name) {
      Add(fmt::format("direct_read_{}_{}", name, depth), [this, &file, engine, depth]() -> Result<double> {
        CAIRN_RETURN_IF_ERROR(MakeCold(file));
        return Read(file, {.engine = engine, .depth = depth});
      });
    };
    for (const int depth : {1, 4, 8}) add(Engine::kThreads, depth, "threads");
    if (TakesUring()) add(Engine::kUring, 4, "uring");
  }

  const std::vector<Contender>& contenders() const { return contenders_; }
  uint64_t compared_bytes() const { return compared_; }

 private:
  Result<double> Read(const std::string& file, const RawTransfer& how) {
    CAIRN_ASSIGN_OR_RETURN(const double seconds, RawRead(file, target_, how));
    if (!std::ranges::equal(target_, source_)) return Corrupt("{}: read other bytes than were written", file);
    compared_ += target_.size();
    return seconds;
  }

  template <typename Run>
  static Result<double> Timed(const Run& run) {
    const Stopwatch watch;
    run();
    return watch.Seconds();
  }

  void Add(const std::string& name, std::function<Result<double>()> run) {
    contenders_.push_back({name, [this, name, run = std::move(run)](Samples& samples) -> Status {
                             CAIRN_ASSIGN_OR_RETURN(const double seconds, run());
                             samples.Add(name, source_.size(), seconds);
                             return OkStatus();
                           }});
  }

  // For work on new pages: once as the machine provides them, once just after other code freed them.
  void AddInBothStates(const std::string& name, std::function<Status(const std::string&, Samples&)> run) {
    contenders_.push_back({name + "_as_found", [this, name, run](Samples& samples) {
                             Settle(options_.settle_seconds());
                             return run(name + "_as_found", samples);
                           }});
    contenders_.push_back({name + "_recycled", [this, name, run](Samples& samples) {
                             CAIRN_RETURN_IF_ERROR(RecyclePages(options_.dir, source_));
                             return run(name + "_recycled", samples);
                           }});
  }

  const BenchOptions& options_;
  std::span<std::byte> source_;
  std::span<std::byte> target_;
  uint64_t compared_ = 0;
  std::byte sink_{};  // keeps the compiler from leaving work out
  std::vector<Contender> contenders_;
};

}  // namespace

Result<BenchResult> MeasureLimits(const BenchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(options, 3 * options.bytes, 5 * options.bytes));
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer source, WarmBuffer::Make(options.bytes));
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer target, WarmBuffer::Make(options.bytes));
  FillWithNoise(source.bytes(), 1);
  CAIRN_ASSIGN_OR_RETURN(const bool direct, TakesDirect(options.dir));
  // Two files, so that making one cold does not disturb the other, which stays warm.
  const ScratchFile warm(options.dir), cold(options.dir);
  CAIRN_RETURN_IF_ERROR(BufferedWrite(warm.path(), source.bytes()).status());
  Limits limits(options, source.bytes(), target.bytes());
  limits.AddMemory();
  limits.AddDigests();
  limits.AddPageCache();
  limits.AddPageCacheReads(warm.path());
  if (direct) {
    CAIRN_RETURN_IF_ERROR(RawWrite(cold.path(), source.bytes(), {}).status());
    limits.AddDirectWrites();
    if (MakeCold(cold.path()).ok()) limits.AddDirectReads(cold.path());  // not where files live in memory
  }
  CAIRN_ASSIGN_OR_RETURN(Samples samples, RunRounds(limits.contenders(), options.rounds, TellOnTerminal()));
  return BenchResult{std::move(samples), {}, limits.compared_bytes()};
}

}  // namespace cairn
