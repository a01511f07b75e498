#include "runtime/model/layers/rotary.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/model/autograd/autograd.h"

namespace cairn {
namespace {

using at::Tensor;
using Kind = RopeScaling::Kind;

// YaRN: pairs that turn often within the original length keep their frequency, slow ones are stretched, those
// between change over linearly.
void StretchSlowPairs(const RopeScaling& scaling, double base, std::vector<double>& frequencies) {
  const auto pairs = static_cast<double>(frequencies.size());
  const auto pair_that_turns = [&](double times) {
    return pairs * std::log(scaling.original_positions / (times * 2 * std::numbers::pi)) / std::log(base);
  };
  double low = pair_that_turns(scaling.beta_fast), high = pair_that_turns(scaling.beta_slow);
  if (scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, 2 * pairs - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= slow / scaling.factor + (1 - slow);
  }
}

// LLaMA 3.1: by the wavelength in tokens.
void StretchLongWaves(const RopeScaling& scaling, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) {
    const double waves = scaling.original_positions * frequency / (2 * std::numbers::pi);
    const double fast = std::clamp(
        (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
    frequency *= (1 - fast) / scaling.factor + fast;
  }
}

}  // namespace

std::vector<double> RotaryFrequencies(const RotarySpec& rotary, int64_t pairs, double positions,
                                      double length) {
  const RopeScaling& scaling = rotary.scaling;
  const double turned = 2.0 * static_cast<double>(pairs);
  double base = rotary.base;
  if (scaling.kind == Kind::kDynamic && length > positions)
    base *= std::pow(scaling.factor * length / positions - (scaling.factor - 1), turned / (turned - 2));
  std::vector<double> frequencies(pairs);
  for (int64_t i = 0; i < pairs; ++i) frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / turned);
  if (scaling.kind == Kind::kLinear)
    for (double& frequency : frequencies) frequency /= scaling.factor;
  if (scaling.kind == Kind::kYarn) StretchSlowPairs(scaling, base, frequencies);
  if (scaling.kind == Kind::kLlama3) StretchLongWaves(scaling, frequencies);
  if (scaling.kind == Kind::kLongRope) {
    const auto& factors = length > scaling.original_positions ? scaling.long_factor : scaling.short_factor;
    for (int64_t i = 0; i < pairs; ++i) frequencies[i] /= factors[i];
  }
  return frequencies;
}

double RotaryFactor(const RopeScaling& scaling) {
  const auto of_yarn = [&](double mscale) {
    return scaling.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(scaling.factor) + 1;
  };
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  if (scaling.kind == Kind::kYarn && scaling.mscale > 0 && scaling.mscale_all_dim > 0)
    return of_yarn(scaling.mscale) / of_yarn(scaling.mscale_all_dim);
  if (scaling.kind == Kind::kYarn) return of_yarn(1);
  if (scaling.kind == Kind::kLongRope && scaling.factor > 1)
    return std::sqrt(1 + std::log(scaling.factor) / std::log(scaling.original_positions));
  return 1;
}

Tensor Rotary::forward(const Tensor& x, const Tensor& positions) const {
  const ByHand by_hand({x});
  Angles angles = AnglesOf(x);
  angles.positions = positions;
  return by_hand.Finish(Turn(x, angles, 1), [this, angles](const Tensor& dy) -> std::vector<Tensor> {
    return {Turn(dy, angles, -1)};
  });
}

const Rotary::Angles& Rotary::AnglesOf(const Tensor& x) const {
  const int64_t s = x.size(1);
  if (angles_.cos.defined() && angles_.cos.size(0) == s && angles_.cos.device() == x.device()) return angles_;
  const Tensor frequencies =
      at::tensor(RotaryFrequencies(spec_, pairs_, static_cast<double>(positions_), static_cast<double>(s)),
                 at::kDouble)
          .to(at::kFloat);
  const Tensor angles =
      at::outer(at::arange(s, at::kFloat), frequencies).unsqueeze(1);  // fp32, as transformers and Megatron
  const double factor = RotaryFactor(spec_.scaling);
  angles_ = {(angles.cos() * factor).to(x.device()), (angles.sin() * factor).to(x.device())};
  return angles_;
}

Tensor Rotary::Angles::ByToken(const Tensor& of_position) const {
  if (!positions.defined()) return of_position;
  return of_position.index_select(0, positions.view({-1}))
      .view({positions.size(0), positions.size(1), 1, -1});
}

Tensor Rotary::Half(const Tensor& x, int which) const {
  return spec_.interleaved ? x.slice(-1, which, 2 * pairs_, 2) : x.narrow(-1, which * pairs_, pairs_);
}

Tensor Rotary::Turn(const Tensor& x, const Angles& angles, int sign) const {
  Tensor out = at::empty(x.sizes(), x.options());
  const Tensor first = Half(x, 0).to(at::kFloat), second = Half(x, 1).to(at::kFloat);
  const Tensor cos = angles.ByToken(angles.cos), sin = angles.ByToken(angles.sin);
  Half(out, 0).copy_((first * cos).addcmul_(second, sin, -sign));
  Half(out, 1).copy_((second * cos).addcmul_(first, sin, sign));
  const int64_t rest = x.size(-1) - 2 * pairs_;
  if (rest > 0) out.narrow(-1, 2 * pairs_, rest).copy_(x.narrow(-1, 2 * pairs_, rest));
  return out;
}

}  // namespace cairn
