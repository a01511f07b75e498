#include "runtime/model/parameters/initialize.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "runtime/data/hash.h"

namespace cairn {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements a thread takes at a time

bool EndsWith(std::string_view name, std::string_view end) { return name.ends_with(end); }

// values[i] = scale * normal(seed, global index), over the rows of the box.
void FillNormal(const ParameterSpec& spec, const LocalParameter& local, uint64_t seed, float scale,
                float* values) {
  const auto fill = [&](uint64_t global, uint64_t mine, uint64_t count) {
    at::parallel_for(0, static_cast<int64_t>(count), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[mine + i] = scale * NormalAt(seed, global + i);
    });
  };
  if (local.box.Volume() > 0) ForEachRun(local.box, Box::Whole(spec.shape), local.box, fill);
}

at::Tensor ValuesOf(const TrainConfig& config, const ParameterSpec& spec, const LocalParameter& local) {
  at::Tensor values = at::zeros({static_cast<int64_t>(local.shape.Volume())}, at::kFloat);
  if (EndsWith(spec.name, "norm.weight")) return values.fill_(1);
  if (EndsWith(spec.name, ".bias")) return values;
  const bool to_residual =
      EndsWith(spec.name, "attention.output.weight") || EndsWith(spec.name, "mlp.down.weight");
  const double scale = config.init_method_std / (to_residual ? std::sqrt(2.0 * config.num_layers) : 1.0);
  const uint64_t seed = HashNumbers({static_cast<uint64_t>(config.seed), HashName(spec.name)});
  FillNormal(spec, local, seed, static_cast<float>(scale), values.mutable_data_ptr<float>());
  return values;
}

}  // namespace

// Box-Muller on the two halves of a hash.
float NormalAt(uint64_t seed, uint64_t index) {
  const uint64_t bits = Mix(seed ^ Mix(index));
  const float radius = (static_cast<float>(bits >> 40) + 1.0f) * 0x1p-24f;  // (0, 1]
  const float angle = static_cast<float>(bits & 0xFFFFFF) * 0x1p-24f;       // [0, 1)
  return std::sqrt(-2.0f * std::log(radius)) * std::cos(2.0f * std::numbers::pi_v<float> * angle);
}

void InitialValues(const TrainConfig& config, const FlatParameters& parameters,
                   const std::function<void(const LocalParameter&, const at::Tensor& values)>& sink) {
  for (const LocalParameter& local : parameters.layout().parameters)
    sink(local, ValuesOf(config, parameters.SpecOf(local), local));
}

}  // namespace cairn
