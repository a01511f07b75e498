// load_bench STEP [flags]: how fast a step loads, against the machine's own limit in the same round.
//
// Warm: StepReader::Load of all tensors, against a plain read() of the same bytes from the page cache into
// the same memory by as many threads. Cold: the same after the shards were dropped from the page cache,
// against O_DIRECT reads of the same bytes, as many in flight. Prints one JSON object: medians, and the
// medians of the rounds' ratios (limit's time / ours; 1 is the limit).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/step/step_reader.h"

namespace cairn {
namespace {

struct Flags {
  std::string step;
  int rounds = 5;
  LoadOptions load;
};

class Bench {
 public:
  Bench(const Flags& flags, std::unique_ptr<StepReader> step) : flags_(flags), step_(std::move(step)) {
    const StepCatalog& catalog = step_->catalog();
    uint64_t bytes = 0;
    for (const TensorEntry& tensor : catalog.tensors) bytes += tensor.bytes();
    // Touched once: what is measured is the load, not the machine's first use of a page.
    memory_ = static_cast<std::byte*>(std::aligned_alloc(2 << 20, (bytes / (2 << 20) + 1) * (2 << 20)));
    ::madvise(memory_, bytes, MADV_HUGEPAGE);
    std::fill_n(memory_, bytes, std::byte{1});
    bytes_ = bytes;
    uint64_t at = 0;
    for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
      const TensorEntry& tensor = catalog.tensors[i];
      requests_.push_back({i, Box::Whole(tensor.spec.shape), {memory_ + at, tensor.bytes()}});
      at += tensor.bytes();
    }
    at = 0;
    std::vector<Span> spans;
    for (size_t i = 0; i < catalog.pieces.size(); ++i) {
      const Piece& piece = catalog.pieces[i];
      spans.push_back({piece.file, piece.file_offset, piece.file_offset + piece.stored_bytes});
    }
    std::ranges::sort(spans, {}, [](const Span& s) { return std::pair(s.file, s.begin); });
    for (const Span& span : spans) AddBlocks(span);
  }
  ~Bench() { std::free(memory_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Status Run() {
    nlohmann::ordered_json report{
        {"bytes", bytes_}, {"threads", flags_.load.threads}, {"depth", flags_.load.depth}};
    for (const bool cold : {false, true}) CAIRN_RETURN_IF_ERROR(Measure(cold, report));
    std::puts(report.dump().c_str());
    return OkStatus();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Span {
    uint32_t file;
    uint64_t begin;
    uint64_t end;
  };

  // What a plain program would read: the stretches that hold tensors, in blocks as large as our reads.
  void AddBlocks(Span span) {
    if (!blocks_.empty() && blocks_.back().file == span.file && span.begin - blocks_.back().end < 64 << 10 &&
        span.end - blocks_.back().begin <= kExtentBytes) {
      blocks_.back().end = span.end;
      return;
    }
    for (; span.begin < span.end; span.begin += kExtentBytes)
      blocks_.push_back({span.file, span.begin, std::min(span.end, span.begin + kExtentBytes)});
  }

  std::string PathOf(uint32_t file) const {
    return JoinPath(step_->directory(), step_->catalog().files[file]);
  }

  // Leaves the shards in the page cache or out of it.
  Status Prepare(bool cold) {
    for (uint32_t file = 0; file < step_->catalog().files.size(); ++file) {
      const int fd = ::open(PathOf(file).c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) return IoError("cannot open {}", PathOf(file));
      if (cold) {
        ::fsync(fd);
        ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      } else {
        std::vector<std::byte> window(kExtentBytes);
        while (::read(fd, window.data(), window.size()) > 0) {
        }
      }
      ::close(fd);
    }
    return OkStatus();
  }

  static double CpuSeconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }

  struct Cost {
    double wall = 0;  // seconds
    double cpu = 0;   // of all threads: what counts on a machine that has other work
  };
  template <typename Work>
  static Result<Cost> CostOf(Work work) {
    const auto start = Clock::now();
    const double cpu = CpuSeconds();
    CAIRN_RETURN_IF_ERROR(work());
    return Cost{std::chrono::duration<double>(Clock::now() - start).count(), CpuSeconds() - cpu};
  }

  // Every round: both contenders, the one that begins by turns.
  Status Measure(bool cold, nlohmann::ordered_json& report) {
    std::vector<double> ours, limit, ratio, cpu_ratio;
    for (int round = -1; round < flags_.rounds; ++round) {  // the first one warms up
      Cost cost[2];
      for (const int who : {round & 1, 1 - (round & 1)}) {
        CAIRN_RETURN_IF_ERROR(Prepare(cold));
        const auto work = [&] { return who == 0 ? step_->Load(requests_, flags_.load) : ReadPlainly(cold); };
        CAIRN_ASSIGN_OR_RETURN(cost[who], CostOf(work));
      }
      if (round < 0) continue;
      ours.push_back(cost[0].wall);
      limit.push_back(cost[1].wall);
      ratio.push_back(cost[1].wall / cost[0].wall);
      cpu_ratio.push_back(cost[1].cpu / cost[0].cpu);
    }
    const auto median = [](std::vector<double> v) {
      std::ranges::sort(v);
      return v[v.size() / 2];
    };
    const std::string name = cold ? "cold" : "warm";
    report[name + "_load_gbps"] = static_cast<double>(bytes_) / median(ours) / 1e9;
    report[name + "_limit_gbps"] = static_cast<double>(bytes_) / median(limit) / 1e9;
    report[name + "_ratio"] = median(ratio);
    report[name + "_ratios"] = ratio;
    report[name + "_cpu_ratio"] = median(cpu_ratio);
    return OkStatus();
  }

  Status ReadPlainly(bool direct) { return direct ? ReadDirect() : ReadCached(); }

  Status ReadCached() {
    std::vector<int> files;
    for (uint32_t file = 0; file < step_->catalog().files.size(); ++file)
      files.push_back(::open(PathOf(file).c_str(), O_RDONLY | O_CLOEXEC));
    std::atomic<size_t> next = 0;
    std::atomic<bool> failed = false;
    const auto work = [&] {
      for (size_t i; (i = next++) < blocks_.size();) {
        const Span& block = blocks_[i];
        const auto size = static_cast<ssize_t>(block.end - block.begin);
        std::byte* to = memory_ + std::min<uint64_t>(i * kExtentBytes, bytes_ - size);
        if (::pread(files[block.file], to, size, static_cast<off_t>(block.begin)) != size) failed = true;
      }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < flags_.load.threads; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    for (const int fd : files) ::close(fd);
    return failed ? IoError("a read failed") : OkStatus();
  }

  Status ReadDirect() {
    FileSystem& fs = FileSystem::Posix();
    std::vector<std::unique_ptr<File>> files(step_->catalog().files.size());
    for (uint32_t file = 0; file < files.size(); ++file) {
      CAIRN_ASSIGN_OR_RETURN(files[file], fs.OpenForRead(PathOf(file), Direct::kOn));
    }
    const auto queue = fs.NewQueue({.depth = flags_.load.depth});
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (queue->in_flight() == queue->depth()) CAIRN_RETURN_IF_ERROR(queue->Wait().status);
      const Span& block = blocks_[i];
      const uint64_t size = PageUp(block.end - block.begin);
      std::byte* to =
          memory_ + std::min<uint64_t>(i * kExtentBytes, (bytes_ - size) / kPageBytes * kPageBytes);
      queue->Read(*files[block.file], block.begin, {to, size}, i);
    }
    while (queue->in_flight() > 0) CAIRN_RETURN_IF_ERROR(queue->Wait().status);
    return OkStatus();
  }

  const Flags flags_;
  std::unique_ptr<StepReader> step_;
  uint64_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::vector<ReadRequest> requests_;
  std::vector<Span> blocks_;
};

Status Run(const Flags& flags) {
  CAIRN_ASSIGN_OR_RETURN(auto step, StepReader::Open(FileSystem::Posix(), flags.step));
  return Bench(flags, std::move(step)).Run();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  cairn::Flags flags;
  CLI::App app("measures the load of a step");
  app.add_option("STEP", flags.step, "a step directory on a disk")->required();
  app.add_option("--rounds", flags.rounds);
  app.add_option("--threads", flags.load.threads);
  app.add_option("--depth", flags.load.depth);
  CLI11_PARSE(app, argc, argv);
  const cairn::Status status = cairn::Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "load_bench: %s\n", status.message().c_str());
  return 2;
}
