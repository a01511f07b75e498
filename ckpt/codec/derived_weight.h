// An fp16 weight whose fp32 master is stored needs no bytes: it is the master rounded to nearest, ties
// to even (cast.h).
//
// FindUnderived() lists the elements that differ from that, so every pair of arrays is restored bit for bit;
// a trainer's weights have none. tests/ckpt/codec/derived_weight_test.cc shows it for all 2^32 masters.
#pragma once

#include "ckpt/codec/split_master.h"

namespace cairn {

// `master` holds fp32, `weight` fp16, of the same elements, at any alignment. Replaces `exceptions`, in order
// of index; `high` is the element's own 16 bits. False if there are more than `max_exceptions`: then these
// are not rounded masters and the weight is best stored whole. Requires less than 2^32 elements.
bool FindUnderived(std::span<const std::byte> master, std::span<const std::byte> weight,
                   size_t max_exceptions, std::vector<MasterException>& exceptions);

// Fills `weight`. Exceptions whose index lies beyond the span are left out.
void DeriveWeight(std::span<const std::byte> master, std::span<const MasterException> exceptions,
                  std::span<std::byte> weight);

}  // namespace cairn
