// A box is announced with its runs. Long runs are cut at places of the file that are kCutBytes apart, so that
// the rest of such a stretch in the next box is read together with it, and no page twice. Near runs make a
// cluster, and clusters are what ExtentsAhead reads and joins over several boxes. A box is not read ahead if
// most of it is in the page cache, from which it is copied straight to its place, or if much of what is read
// would be thrown away: for a few columns of a stored matrix, the page cache keeps the other columns for the
// next boxes.

#include "convert/foreign/runs_ahead.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

constexpr size_t kMaxAnnounced = 256;        // boxes
constexpr uint64_t kSmallWaste = 256 << 10;  // unused bytes for which a box is still read ahead
// One read, of any alignment.
constexpr uint64_t kCutBytes = kExtentBytes - kPageBytes;

template <typename Integer>
void CopyStrided(const FileRun& run, const std::byte* from, std::byte* to) {
  const uint64_t elements = run.bytes / sizeof(Integer);
  for (uint64_t i = 0; i < elements; i += run.step, to += run.stride * sizeof(Integer))
    std::memcpy(to, from + i * sizeof(Integer), sizeof(Integer));
}

}  // namespace

void CopyRun(const FileRun& run, const std::byte* from, uint64_t element_bytes,
             std::span<std::byte> box_bytes) {
  std::byte* to = box_bytes.data() + run.target * element_bytes;
  if (run.stride == 1 && run.step == 1) return (void)std::memcpy(to, from, run.bytes);
  if (element_bytes == 1) return CopyStrided<uint8_t>(run, from, to);
  if (element_bytes == 2) return CopyStrided<uint16_t>(run, from, to);
  if (element_bytes == 4) return CopyStrided<uint32_t>(run, from, to);
  CopyStrided<uint64_t>(run, from, to);
}

RunsAhead::RunsAhead(const NumberedFiles& files, BoxSequence next,
                     std::function<BoxRuns(const TensorBox&)> runs_of, SeeBytes see, uint64_t max_bytes)
    : files_(files),
      next_(std::move(next)),
      runs_of_(std::move(runs_of)),
      see_(std::move(see)),
      ahead_(
          files, [this] { return PlanNext(); }, max_bytes, /*horizon_bytes=*/max_bytes / 2) {}

std::optional<std::vector<ExtentsAhead::Wanted>> RunsAhead::PlanNext() {
  std::vector<ExtentsAhead::Wanted> wanted;
  while (wanted.empty() && announced_.size() < kMaxAnnounced) {
    std::optional<TensorBox> box = next_();
    if (!box) return std::nullopt;
    BoxRuns stored = runs_of_(*box);
    Cut(stored);
    std::vector<Cluster> clusters = ClustersOf(stored);
    if (InPageCache(clusters)) clusters.clear();
    if (clusters.empty()) stored.runs = {};
    for (const Cluster& cluster : clusters) wanted.push_back(cluster.wanted);
    announced_.push_back({*box, std::move(stored), std::move(clusters)});
  }
  return wanted;
}

void RunsAhead::Cut(BoxRuns& stored) const {
  std::vector<FileRun> cut;
  for (FileRun run : stored.runs) {
    while (true) {
      uint64_t to_cut = kCutBytes - run.offset % kCutBytes;
      const uint64_t step_bytes = run.step * stored.element_bytes;
      if (to_cut < step_bytes) to_cut += kCutBytes;
      const uint64_t elements = to_cut / step_bytes, bytes = elements * step_bytes;
      if (run.bytes <= bytes) break;
      FileRun first = run;
      first.bytes = bytes - step_bytes + stored.element_bytes;
      cut.push_back(first);
      run.offset += bytes;
      run.bytes -= bytes;
      run.target += elements * run.stride;
    }
    cut.push_back(run);
  }
  stored.runs = std::move(cut);
}

std::vector<RunsAhead::Cluster> RunsAhead::ClustersOf(const BoxRuns& stored) {
  const std::vector<FileRun>& runs = stored.runs;
  std::vector<Cluster> clusters;
  uint64_t wanted = 0, waste = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const FileRun& run = runs[i];
    wanted += run.bytes;
    ExtentsAhead::Wanted* last = clusters.empty() ? nullptr : &clusters.back().wanted;
    if (last && last->file == run.file &&
        JoinsExtent(last->begin, last->end, run.offset, run.offset + run.bytes)) {
      waste += run.offset - last->end;
      last->end = run.offset + run.bytes;
      clusters.back().last = i + 1;
    } else {
      waste += 2 * kPageBytes;
      clusters.push_back(
          {i, i + 1, {{clusters_ + clusters.size(), 0}, run.file, run.offset, run.offset + run.bytes}});
    }
  }
  if (std::max(waste, runs.size() * sizeof(FileRun)) > kSmallWaste + wanted / 4) clusters.clear();
  clusters_ += clusters.size();
  return clusters;
}

bool RunsAhead::InPageCache(const std::vector<Cluster>& clusters) const {
  uint64_t bytes = 0, cached = 0;
  for (const auto& [first, last, wanted] : clusters) {
    const Result<std::shared_ptr<File>> file = files_.open.Get(files_.names[wanted.file], Direct::kOff);
    if (!file.ok()) return false;  // the read will report it
    bytes += wanted.end - wanted.begin;
    cached += CachedBytes(**file, wanted.begin, wanted.end - wanted.begin).value_or(0);
  }
  return cached >= bytes / 2;
}

Result<std::optional<uint64_t>> RunsAhead::Read(const TensorBox& box, std::span<std::byte> out) {
  ahead_.StartReads();
  const auto is_it = [&](const Announced& announced) {
    return announced.box.tensor == box.tensor && announced.box.box == box.box;
  };
  if (announced_.empty() || !is_it(announced_.front())) return std::optional<uint64_t>();
  const Announced next = std::move(announced_.front());
  announced_.pop_front();
  if (next.clusters.empty()) return std::optional<uint64_t>();
  uint64_t bytes = 0;
  for (const auto& [first, last, wanted] : next.clusters) {
    CAIRN_ASSIGN_OR_RETURN(std::optional<ExtentsAhead::Taken> taken, ahead_.Take(wanted.id));
    if (!taken) return std::optional<uint64_t>();
    see_(wanted.file, wanted.begin, taken->bytes);
    for (size_t i = first; i < last; ++i)
      CopyRun(next.stored.runs[i], taken->bytes.data() + (next.stored.runs[i].offset - wanted.begin),
              next.stored.element_bytes, out);
    ahead_.Recycle(std::move(taken->memory));
    bytes += wanted.end - wanted.begin;
  }
  return std::optional(bytes);
}

}  // namespace cairn
