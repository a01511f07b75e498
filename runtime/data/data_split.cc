#include "runtime/data/data_split.h"

#include <charconv>
#include <cmath>

namespace cairn {
namespace {

Result<std::array<double, 3>> ParseShares(std::string_view split) {
  const Status malformed = InvalidArgument(
      "--split \"{}\": expected one to three non-negative numbers whose sum is above 0, such as 969,30,1",
      split);
  std::array<double, 3> shares{};
  const char* at = split.data();
  const char* const end = at + split.size();
  double sum = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    while (at != end && *at == ' ') ++at;
    const auto [next, error] = std::from_chars(at, end, shares[i], std::chars_format::fixed);
    if (error != std::errc() || !std::isfinite(shares[i]) || shares[i] < 0) return malformed;
    sum += shares[i];
    at = next;
    while (at != end && *at == ' ') ++at;
    if (at == end) break;
    if (*at++ != ',') return malformed;
  }
  if (at != end || split.empty() || split.back() == ',' || !(sum > 0) || !std::isfinite(sum))
    return malformed;
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

Result<std::array<SequenceRange, 3>> SplitSequences(std::string_view split, uint64_t sequence_count) {
  CAIRN_ASSIGN_OR_RETURN(const auto shares, ParseShares(split));
  std::array<SequenceRange, 3> ranges;
  double cumulative = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const double next = cumulative + shares[i];
    // rint rounds half to even, as Python's round does.
    ranges[i].begin = static_cast<uint64_t>(std::rint(cumulative * static_cast<double>(sequence_count)));
    ranges[i].end = static_cast<uint64_t>(std::rint(next * static_cast<double>(sequence_count)));
    cumulative = next;
  }
  return ranges;
}

}  // namespace cairn
