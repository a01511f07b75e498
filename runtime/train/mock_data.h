// A synthetic sequence to train on without data: uneven frequencies and runs of successive tokens, so a model
// has something to learn.
#pragma once

#include <cstdint>
#include <span>

namespace cairn {

// Sample `i` of the stream `seed`; tokens below `vocab_size`.
void MockSample(uint64_t seed, uint64_t i, int64_t vocab_size, std::span<int64_t> out);

}  // namespace cairn
