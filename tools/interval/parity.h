// What the parity of node-local steps does not cover.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

// Groups of nodes that survive the loss of any `parity` of them; 0: no redundancy.
struct Parity {
  int64_t group = 1, parity = 0;

  // "none", "xor:8", "rs:8+2"; with a comma, as trainings take it (ParseRedundancy): "rs:8,2".
  std::string Text(char plus = '+') const;
  // Bytes that a node holds for each byte of its own.
  double BytesPerByte() const {
    return parity == 0 ? 1 : static_cast<double>(group) / static_cast<double>(group - parity);
  }
  bool operator==(const Parity&) const = default;
};
// Errors: InvalidArgument.
Result<Parity> ParseParity(std::string_view text);

// The chance that `lost` of `nodes`, chosen at random, are more than the parity covers: more than that in one
// group. The last group takes the nodes that are left.
double BeyondParity(const Parity& parity, int64_t nodes, int64_t lost);

// The chance that after the loss of one node its group loses as many more as are too many before it is
// rebuilt, if each node fails `node_failures` times while that takes.
double LostMeanwhile(const Parity& parity, double node_failures);

}  // namespace cairn
