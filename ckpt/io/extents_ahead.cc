// A read takes the first stretch that is wanted, and all later ones that lie close behind it in the same
// file. The memory of a read is free again when all of its stretches were taken. So a stretch that is
// requested but found no room is read at once, beyond the limit: waiting for room could mean waiting for
// stretches that are requested only later.

#include "ckpt/io/extents_ahead.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr size_t kHorizon = 256;  // stretches among which neighbours are looked for

// A read is of whole pages.
uint64_t MemoryOf(uint64_t begin, uint64_t end) {
  return ExtentReader::BufferBytes(PageUp(end) - PageDown(begin));
}

}  // namespace

ExtentsAhead::ExtentsAhead(const NumberedFiles& files, Plan plan, uint64_t max_bytes, uint64_t horizon_bytes)
    : files_(files),
      plan_(std::move(plan)),
      max_bytes_(max_bytes),
      horizon_bytes_(horizon_bytes),
      reader_(files.open, {.map = false}) {}

void ExtentsAhead::PlanMore() {
  while (plan_ && wanted_.size() < kHorizon && wanted_bytes_ < horizon_bytes_) {
    const std::optional<std::vector<Wanted>> more = plan_();
    if (!more) plan_ = {};
    if (!more || more->empty()) return;
    for (const Wanted& wanted : *more) wanted_bytes_ += wanted.end - wanted.begin;
    wanted_.insert(wanted_.end(), more->begin(), more->end());
  }
}

bool ExtentsAhead::HasRoom() const {
  return extents_.empty() || held_bytes_ + MemoryOf(0, std::min(kExtentBytes, wanted_bytes_)) <= max_bytes_;
}

void ExtentsAhead::StartReads() {
  PlanMore();
  while (!wanted_.empty() && HasRoom()) {
    if (reader_.at_hand())
      Finish();
    else if (reader_.full())
      return;
    StartRead();
    PlanMore();
  }
}

void ExtentsAhead::StartRead() {
  std::vector<Wanted> together{wanted_.front()};
  wanted_.pop_front();
  for (auto next = wanted_.begin(); next != wanted_.end();) {
    const Wanted& last = together.back();
    const bool joins =
        next->file == last.file && JoinsExtent(together.front().begin, last.end, next->begin, next->end);
    if (joins) together.push_back(*next);
    next = joins ? wanted_.erase(next) : std::next(next);
  }
  const auto extent = extents_.emplace(extents_.end());
  extent->begin = together.front().begin, extent->end = together.back().end;
  extent->left = together.size();
  held_bytes_ += MemoryOf(extent->begin, extent->end);
  for (const Wanted& wanted : together) {
    places_.emplace(wanted.id, Place{extent, wanted.begin - extent->begin, wanted.end - wanted.begin});
    wanted_bytes_ -= wanted.end - wanted.begin;
  }
  const uint32_t file = together.front().file;
  reader_.Start({.file = files_.names[file],
                 .begin = extent->begin,
                 .end = extent->end,
                 .file_bytes = files_.file_bytes[file],
                 .tag = reinterpret_cast<uintptr_t>(&*extent)});
}

void ExtentsAhead::Finish() {
  ExtentReader::Finished read = reader_.Wait();
  auto& extent = *reinterpret_cast<Extent*>(read.tag);
  extent.read = std::move(read);
  extent.done = true;
}

Result<std::optional<ExtentsAhead::Taken>> ExtentsAhead::Take(Id id) {
  StartReads();
  auto found = places_.find(id);
  if (found == places_.end()) {
    const auto wanted = std::ranges::find(wanted_, id, &Wanted::id);
    if (wanted == wanted_.end()) return std::optional<Taken>();
    std::rotate(wanted_.begin(), wanted, wanted + 1);  // it found no room
    if (reader_.full()) Finish();
    StartRead();
    found = places_.find(id);
  }
  const auto [extent, offset, bytes] = found->second;
  places_.erase(found);
  while (!extent->done) {
    Finish();
    StartReads();  // first, so that the disk is not kept waiting
  }
  Status status = extent->read.status;
  Taken taken;
  if (status.ok()) {
    PageBuffer& memory = *extent->read.memory;
    const size_t begin = extent->read.bytes.data() - memory.data();
    taken.bytes = {memory.data() + begin + offset, bytes};
  }
  if (--extent->left == 0) {
    held_bytes_ -= MemoryOf(extent->begin, extent->end);
    taken.memory = std::move(extent->read.memory);
    extents_.erase(extent);
  }
  StartReads();
  if (!status.ok()) return status;
  return std::optional(std::move(taken));
}

}  // namespace cairn
