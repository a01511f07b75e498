// A CRC is a sum over stretches (crc32_sum.h), so that a record needs one number and the list of what was
// added. Reads are large and mostly in order, so that the list stays short.

#include "convert/torch/record_sums.h"

#include <algorithm>
#include <tuple>

namespace cairn {

RecordSums::RecordSums(std::vector<SummedRecord> records) {
  std::ranges::sort(records, {},
                    [](const SummedRecord& r) { return std::tuple(r.file, r.record.file_offset); });
  for (const SummedRecord& record : records)
    if (record.record.crc != 0 && record.record.bytes > 0)
      states_.push_back({record, Crc32Sum(record.record.bytes), {}});
}

void RecordSums::Add(uint32_t file, uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t end = offset + bytes.size();
  auto state = std::ranges::partition_point(states_, [&](const State& s) {
    return std::tuple(s.of.file, s.of.record.file_offset + s.of.record.bytes) <= std::tuple(file, offset);
  });
  for (; state != states_.end() && state->of.file == file && state->of.record.file_offset < end; ++state) {
    const ZipRecord& record = state->of.record;
    uint64_t at = std::max(offset, record.file_offset) - record.file_offset;
    const uint64_t last = std::min(end, record.file_offset + record.bytes) - record.file_offset;
    while (at < last) {
      auto next = state->added.upper_bound(at);  // the first stretch after `at`
      if (next != state->added.begin() && std::prev(next)->second > at) {
        at = std::prev(next)->second;
        continue;
      }
      const uint64_t stop = next == state->added.end() ? last : std::min(last, next->first);
      AddNew(*state, at, bytes.subspan(record.file_offset + at - offset, stop - at));
      at = stop;
    }
  }
}

void RecordSums::AddNew(State& state, uint64_t begin, std::span<const std::byte> bytes) {
  const uint64_t end = begin + bytes.size();
  state.sum.Add(end, Crc32Sum::Extend(0, bytes));
  auto next = state.added.upper_bound(begin);
  auto here = next;
  if (next != state.added.begin() && std::prev(next)->second == begin) {
    here = std::prev(next);
    here->second = end;
  } else {
    here = state.added.emplace(begin, end).first;
  }
  if (next != state.added.end() && next->first == end) {
    here->second = next->second;
    state.added.erase(next);
  }
}

std::vector<RecordSums::Gap> RecordSums::Gaps() const {
  std::vector<Gap> gaps;
  for (const State& state : states_) {
    if (state.added.empty()) continue;
    const uint64_t offset = state.of.record.file_offset;
    uint64_t at = 0;
    for (const auto& [begin, end] : state.added) {
      if (begin > at) gaps.push_back({state.of.file, {offset + at, offset + begin}});
      at = end;
    }
    if (at < state.of.record.bytes)
      gaps.push_back({state.of.file, {offset + at, offset + state.of.record.bytes}});
  }
  return gaps;
}

Status RecordSums::Check(std::span<const std::string> names) const {
  for (const State& state : states_) {
    if (state.added.empty()) continue;
    const ZipRecord& record = state.of.record;
    const uint32_t found = state.sum.Finish();
    if (found != record.crc)
      return Corrupt(
          "{} at byte {}: record {} of {} bytes has the CRC-32 {:08x}, its zip says {:08x}; the file is "
          "damaged; cairn verify lists all damaged records, convert --no-checksums ignores them",
          names[state.of.file], record.file_offset, record.name, record.bytes, found, record.crc);
  }
  return OkStatus();
}

}  // namespace cairn
