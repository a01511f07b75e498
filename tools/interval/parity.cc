#include "tools/interval/parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ckpt/step/parity_file.h"

namespace cairn {
namespace {

// The logarithm of the ways to choose k of n.
double LogChoose(int64_t n, int64_t k) {
  const auto a = static_cast<double>(n), b = static_cast<double>(k);
  return std::lgamma(a + 1) - std::lgamma(b + 1) - std::lgamma(a - b + 1);
}

}  // namespace

std::string Parity::Text(char plus) const {
  if (parity == 0) return "none";
  return parity == 1 ? fmt::format("xor:{}", group) : fmt::format("rs:{}{}{}", group, plus, parity);
}

// As trainings take it, and with a plus for the comma.
Result<Parity> ParseParity(std::string_view text) {
  if (text == "none") return Parity{};
  std::string form(text);
  std::ranges::replace(form, '+', ',');
  const Result<Redundancy> taken = ParseRedundancy(form);
  if (!taken.ok() || taken->group == 0)
    return InvalidArgument("--redundancy '{}' is not none, xor:K or rs:K+M with M < K <= {}", text,
                           kMaxCodeBlocks);
  return Parity{taken->group, taken->parity};
}

// The ways to lose nodes of which no group loses too many, group by group.
double BeyondParity(const Parity& parity, int64_t nodes, int64_t lost) {
  if (lost <= parity.parity) return 0;
  if (parity.parity == 0 || lost >= nodes) return 1;
  std::vector<double> ways(static_cast<size_t>(lost) + 1, 0);  // by nodes lost so far, times exp(-scale)
  ways[0] = 1;
  double scale = 0;
  for (int64_t first = 0; first < nodes;) {
    const bool last = first + 2 * parity.group > nodes;
    const int64_t size = last ? nodes - first : parity.group;
    std::vector<double> with(ways.size(), 0);
    for (int64_t before = 0; before <= lost; ++before)
      for (int64_t here = 0; here <= std::min({parity.parity, size, lost - before}); ++here)
        with[before + here] += ways[before] * std::exp(LogChoose(size, here));
    const double most = std::ranges::max(with);
    for (double& each : with) each /= most;
    scale += std::log(most);
    ways = std::move(with);
    first += size;
  }
  return std::clamp(1 - ways[lost] * std::exp(scale - LogChoose(nodes, lost)), 0.0, 1.0);
}

double LostMeanwhile(const Parity& parity, double node_failures) {
  if (parity.parity == 0) return 1;
  const double mean = static_cast<double>(parity.group - 1) * node_failures;
  double fewer = 0, term = std::exp(-mean);
  for (int64_t k = 0; k < parity.parity; ++k) {
    fewer += term;
    term *= mean / static_cast<double>(k + 1);
  }
  return std::clamp(1 - fewer, 0.0, 1.0);
}

}  // namespace cairn
