// Stores only the low half of an fp32 master whose bf16 weight gives the high half.
//
// A trainer's weight is its master rounded to nearest even, so the weight is the master's high half if the
// low half is at most 0x8000, and one more if it is above. JoinMaster() takes the high half from that rule.
// SplitMaster() applies the rule and lists the elements for which it is wrong, so that every pair of arrays
// comes back bit for bit; for rounded weights those are the exact ties (low half 0x8000) below an odd high
// half, one element in 131 072, and NaNs. tests/ckpt/codec/split_master_test.cc shows it for all 2^32
// masters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {

// An element whose high half does not follow from the weight.
struct MasterException {
  uint32_t index = 0;  // in the span
  uint16_t high = 0;
  bool operator==(const MasterException&) const = default;
};

// `weight` holds bf16, `master` fp32, of the same elements, at any alignment; `low` gets 2 bytes an element.
// Replaces `exceptions`, in order of index. False if there are more than `max_exceptions`: then these are not
// rounded weights, and the master is best stored whole. Requires less than 2^32 elements.
bool SplitMaster(std::span<const std::byte> weight, std::span<const std::byte> master,
                 std::span<std::byte> low, size_t max_exceptions, std::vector<MasterException>& exceptions);

// Fills `master`. Exceptions whose index lies beyond the span are left out.
void JoinMaster(std::span<const std::byte> weight, std::span<const std::byte> low,
                std::span<const MasterException> exceptions, std::span<std::byte> master);

}  // namespace cairn
