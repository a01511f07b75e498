#include "tools/cli/dry_run.h"

#include "ckpt/base/stopwatch.h"
#include "ckpt/step/partial_dir.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"

namespace cairn {
namespace {

constexpr uint64_t kSampleBytes = 64 << 20;

// Bytes a second at which the source's first tensors are read and verified; at most kSampleBytes of them.
Result<double> MeasureReading(CheckpointSource& source) {
  std::vector<uint32_t> sample;
  uint64_t bytes = 0;
  const auto& tensors = source.catalog().tensors;
  for (uint32_t i = 0; i < tensors.size() && bytes < kSampleBytes; ++i) {
    if (bytes + tensors[i].bytes() > 2 * kSampleBytes) continue;
    sample.push_back(i);
    bytes += tensors[i].bytes();
  }
  if (bytes == 0) return 1e9;  // only huge tensors, or none
  const Stopwatch watch;
  CAIRN_RETURN_IF_ERROR(
      StreamPart(source, BlocksOf(source.catalog(), EachAlone(sample), BlockBytesFor(kDefaultMaxMemory)),
                 [](const Block&) { return OkStatus(); }));
  return static_cast<double>(bytes) / std::max(watch.Seconds(), 1e-9);
}

}  // namespace

Status PrintDryRun(CheckpointSource& source, const TransferCost& cost, const std::string& target, bool json,
                   uint64_t overflowed) {
  CAIRN_ASSIGN_OR_RETURN(const double rate, MeasureReading(source));
  const double seconds = static_cast<double>(cost.moved_bytes + cost.file_bytes) / rate;
  const auto files_of = [](const std::vector<uint64_t>& bytes) {
    return std::ranges::count_if(bytes, [](uint64_t count) { return count > 0; });
  };
  const auto from = files_of(cost.plan.from_files), to = files_of(cost.plan.to_files);
  if (json) {
    PrintJson({{"dry_run", true},
               {"plan", {{"copies", cost.plan.copies}, {"from_files", from}, {"to_files", to}}},
               {"read_bytes", cost.read_bytes},
               {"write_bytes", cost.file_bytes},
               {"files", cost.files},
               {"peak_memory_bytes", cost.peak_memory},
               {"overflowed", overflowed},
               {"seconds", seconds},
               {"measured_read_bytes_per_second", rate}});
  } else {
    fmt::print("would read {} and write about {} in {} files\n", HumanBytes(cost.read_bytes),
               HumanBytes(cost.file_bytes), cost.files);
    if (cost.plan.copies > 0)
      fmt::print("plan: {} copies, out of {} files into {}\n", cost.plan.copies, from, to);
    fmt::print("peak memory about {}\n", HumanBytes(cost.peak_memory));
    fmt::print("time about {}, if writing is as fast as reading a part of the source just was ({}/s)\n",
               HumanSeconds(seconds), HumanBytes(rate));
  }
  if (target.empty() || overflowed > 0) return OkStatus();
  return CheckFreeSpace(FileSystem::Posix(), target, cost.file_bytes);
}

}  // namespace cairn
