// The model's views, in the order of the buffer, are joined into runs: parameters of one unit that are all
// large or all small. Gathering a run makes a window for it, lets each owner broadcast its part, and places
// the views in the window; dropping it removes the views' tensors, so a layer that uses a parameter out of
// turn fails. Gradients likewise: a window of zeros for one backward, then a sum to each owner, who adds it
// to what it keeps. All ranks of the group run the same units in the same order, so their collectives match.
#include "runtime/train/zero.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ckpt/base/flat_range.h"
#include "ckpt/model/canonical_modules.h"
#include "runtime/config/model_spec.h"
#include "runtime/log/timers.h"

namespace cairn {
namespace {

using at::Tensor;

FlatRange Join(FlatRange a, FlatRange b) { return {std::min(a.begin, b.begin), std::max(a.end, b.end)}; }

const LocalParameter& FirstOf(const FlatParameters& parameters, FlatRange range) {
  const auto& all = parameters.layout().parameters;
  return *std::ranges::find(all, range.begin, &LocalParameter::flat_begin);
}

}  // namespace

FlatParameters::Kept KeptUnder(const TrainConfig& config, const ParallelDims& dims,
                               const RankLayout& layout) {
  const FlatRange all{0, dims.topology.dp * layout.dense.partition_size};
  if (config.skip_train) return {.weights = all, .grads = {}};
  const FlatRange mine = layout.dense.Partition(dims.at(Axis::kDp));
  return {.weights = config.zero_stage >= 3 ? mine : all,
          .grads = config.zero_stage >= 2 ? mine : all,
          .weights_side = config.offload_param ? Side::kHost : Side::kDevice,
          .grads_side = config.zero_stage >= 2 && config.offload_optimizer ? Side::kHost : Side::kDevice};
}

FlatParameters MakeParameters(const TrainConfig& config, const ParallelDims& dims, at::Device device) {
  std::vector<ParameterSpec> specs = GptSpecs(config);
  auto layout = LayoutOf(specs, dims.topology, dims.world_rank);
  TORCH_CHECK(layout.ok(), layout.status().message());
  const FlatParameters::Kept kept = KeptUnder(config, dims, *layout);
  return FlatParameters(std::move(specs), std::move(*layout), config.dtype(), device, kept);
}

ZeroUnits::ZeroUnits(const TrainConfig& config, const ParallelDims& dims, FlatParameters& parameters)
    : dims_(dims),
      parameters_(parameters),
      shards_weights_(config.zero_stage >= 3),
      shards_grads_(config.zero_stage >= 2),
      bucket_(static_cast<uint64_t>(config.reduce_bucket_size)),
      persistence_(static_cast<uint64_t>(config.stage3_param_persistence_threshold)),
      prefetch_(static_cast<uint64_t>(config.stage3_prefetch_bucket_size)),
      max_live_(static_cast<uint64_t>(config.stage3_max_live_parameters)),
      max_reuse_(static_cast<uint64_t>(config.stage3_max_reuse_distance)) {}

void ZeroUnits::Plan() {
  std::vector<size_t> order(parameters_.views().size());
  std::ranges::generate(order, [i = size_t{0}]() mutable { return i++; });
  std::ranges::stable_sort(order, {}, [this](size_t i) { return parameters_.views()[i].range.begin; });
  std::vector<int> unit_of_run;
  for (const size_t i : order) {
    const FlatParameters::PlacedView& view = parameters_.views()[i];
    const FlatRange range = view.range;
    const ParameterSpec& spec = parameters_.SpecOf(FirstOf(parameters_, view.whole));
    const bool persists = view.whole.size() < persistence_, tile = view.is_tile();
    const bool follows =
        !tile && !runs_.empty() && !runs_.back().tile && range.begin <= runs_.back().range.end;
    if (!follows || unit_of_run.back() != spec.layer || runs_.back().persists != persists ||
        runs_.back().tied != spec.tied_to_last) {
      runs_.push_back({.range = range, .tile = tile, .persists = persists, .tied = spec.tied_to_last});
      unit_of_run.push_back(spec.layer);
    }
    runs_.back().range = Join(runs_.back().range, range);
    runs_.back().views.push_back(i);
  }
  const bool last = dims_.at(Axis::kPp) == dims_.topology.pp - 1;
  for (size_t run = 0; run < runs_.size(); ++run) {
    if (runs_[run].tile) {
      tiles_[runs_[run].views.at(0)] = run;
      tiled_[unit_of_run[run]] += runs_[run].range.size();
      units_.try_emplace(unit_of_run[run]);
      continue;
    }
    if (!runs_[run].tied || dims_.at(Axis::kPp) == 0) units_[unit_of_run[run]].push_back(run);
    if (runs_[run].tied && last) units_[kAfterLayers].push_back(run);
  }
  for (const auto& [unit, runs] : units_)
    for (const size_t run : runs) ++runs_[run].uses;
}

std::vector<ZeroUnits::OwnedPart> ZeroUnits::PartsOf(FlatRange range) const {
  std::vector<OwnedPart> parts;
  for (int owner = 0; owner < dims_.topology.dp; ++owner)
    if (const FlatRange part = Overlap(range, parameters_.layout().dense.Partition(owner)); part.size() > 0)
      parts.push_back({owner, part});
  return parts;
}

// Weights.

void ZeroUnits::Gather(Run& run) {
  if (run.weights.defined()) return;
  run.weights = at::empty({static_cast<int64_t>(run.range.size())},
                          at::TensorOptions(parameters_.device()).dtype(ToScalarType(parameters_.dtype())));
  live_ += run.range.size();
  for (const OwnedPart& part : PartsOf(run.range)) {
    Tensor there = SliceOf(run.weights, part.range, run.range.begin);
    if (part.owner == dims_.dp.rank()) {
      const Touches both = Touches::Both();
      there.copy_(parameters_.Weights(part.range), /*non_blocking=*/true);
    }
    run.arriving.push_back(
        dims_.dp.BroadcastAsync(there, part.owner, fmt::format("weights from {}", part.range.begin)));
  }
}

void ZeroUnits::Await(Run& run) {
  for (Work& work : run.arriving) work.Wait();
  run.arriving.clear();
  Place(run);
}

void ZeroUnits::Drop(Run& run) {
  for (Work& work : run.arriving) work.Wait();
  run.arriving.clear();
  if (!run.weights.defined()) return;
  run.weights = Tensor();
  live_ -= run.range.size();
  Place(run);
}

void ZeroUnits::Place(const Run& run) {
  for (const size_t i : run.views) {
    const FlatParameters::PlacedView& view = parameters_.views()[i];
    const auto in = [&](const Tensor& window) {
      return window.defined() ? SliceOf(window, view.range, run.range.begin).view(view.shape) : Tensor();
    };
    view.parameter.Place(shards_weights_ ? in(run.weights) : view.parameter.value(),
                         shards_grads_ ? in(run.grads) : view.parameter.grad());
  }
}

uint64_t ZeroUnits::SizeOfUnit(int unit) const {
  uint64_t size = tiled_.contains(unit) ? tiled_.at(unit) : 0;
  for (const size_t run : units_.at(unit)) size += runs_[run].range.size();
  return size;
}

// Gathers the next units while this one computes, as far as the limits allow.
void ZeroUnits::Prefetch(int unit, bool forward) {
  uint64_t ahead = 0;
  const auto take = [&](const std::vector<size_t>& runs) {
    for (const size_t i : runs) {
      if (runs_[i].weights.defined()) continue;
      ahead += runs_[i].range.size();
      if (ahead > prefetch_ || live_ + runs_[i].range.size() > max_live_) return false;
      Gather(runs_[i]);
    }
    return true;
  };
  const auto at = units_.find(unit);
  if (forward)
    std::all_of(std::next(at), units_.end(), [&](const auto& next) { return take(next.second); });
  else
    std::all_of(std::make_reverse_iterator(at), units_.rend(),
                [&](const auto& next) { return take(next.second); });
}

// The backward of the last units follows immediately after their forward.
bool ZeroUnits::UsedAgainSoon(int unit) const {
  uint64_t distance = 0;
  for (auto next = std::next(units_.find(unit)); next != units_.end(); ++next)
    distance += 2 * SizeOfUnit(next->first);
  return distance < max_reuse_ && live_ <= max_live_;
}

void ZeroUnits::BeforeForward(int unit) {
  if (!shards_weights_) return;
  for (const size_t i : units_.at(unit)) {
    ++runs_[i].users;
    Gather(runs_[i]);
  }
  for (const size_t i : units_.at(unit)) Await(runs_[i]);
  Prefetch(unit, /*forward=*/true);
}

void ZeroUnits::AfterForward(int unit) {
  if (!shards_weights_) return;
  for (const size_t i : units_.at(unit))
    if (--runs_[i].users == 0 && !runs_[i].persists && !UsedAgainSoon(unit)) Drop(runs_[i]);
}

void ZeroUnits::BeforeTile(size_t tile, TileUse use) {
  Run& run = runs_[tiles_.at(tile)];
  if (use == TileUse::kGrad) {
    OpenGrads(run);
    Place(run);
  } else if (shards_weights_) {
    ++run.users;
    Gather(run);
    Await(run);
    PrefetchTileBehind(tile);
  }
}

void ZeroUnits::AfterTile(size_t tile, TileUse use) {
  Run& run = runs_[tiles_.at(tile)];
  if (use == TileUse::kGrad)
    SendOff(run);
  else if (shards_weights_ && --run.users == 0 && !run.persists)
    Drop(run);
}

// Tiles of one weight are used in their order.
void ZeroUnits::PrefetchTileBehind(size_t tile) {
  const FlatParameters::PlacedView& view = parameters_.views()[tile];
  if (view.range.end == view.whole.end) return;
  Run& next = runs_[tiles_.at(tile) + 1];
  if (next.range.size() <= prefetch_ && live_ + next.range.size() <= max_live_) Gather(next);
}

void ZeroUnits::WeightsChanged() {
  for (Run& run : runs_) Drop(run);
}

void ZeroUnits::ShareUpdate() {
  WeightsChanged();
  if (shards_weights_ || dims_.topology.zero == 0 || dims_.dp.size() == 1) return;
  const ScopedTimer timer(Timer::kParamsAllGather);
  Tensor weights = parameters_.weights();
  dims_.dp.AllGather(weights, weights.view({dims_.dp.size(), -1})[dims_.dp.rank()], "updated weights");
}

// Gradients.

void ZeroUnits::BeginStep(int64_t micro_batches) {
  for (Run& run : runs_) run.missing = run.uses * micro_batches;
}

void ZeroUnits::OpenGrads(Run& run) const {
  run.grads = at::zeros({static_cast<int64_t>(run.range.size())},
                        at::TensorOptions(parameters_.device()).dtype(at::kFloat));
}

void ZeroUnits::BeforeBackward(int unit) {
  for (const size_t i : units_.at(unit)) {
    Run& run = runs_[i];
    if (shards_grads_) OpenGrads(run);
    ++run.users;
    if (shards_weights_) Gather(run);
  }
  for (const size_t i : units_.at(unit))
    if (shards_grads_) Await(runs_[i]);
  if (shards_weights_) Prefetch(unit, /*forward=*/false);
}

void ZeroUnits::AfterBackward(int unit) {
  for (const size_t i : units_.at(unit)) {
    Run& run = runs_[i];
    --run.users;
    --run.missing;
    if (shards_grads_) SendOff(run);
    if (shards_weights_ && run.users == 0 && !run.persists) Drop(run);
    if (!shards_grads_ && run.missing == 0 && !(run.tied && dims_.topology.pp > 1)) NoteComplete(run.range);
  }
}

void ZeroUnits::EndStep() {
  const ScopedTimer timer(Timer::kAllGradsSync);
  for (const Run& run : runs_)
    if (!shards_grads_ && run.tied && dims_.topology.pp > 1) NoteComplete(run.range);
  ReduceReady();
  Settle(0);
}

std::vector<Work> ZeroUnits::ReduceToOwners(const Tensor& values, FlatRange range) {
  std::vector<Work> work;
  for (const OwnedPart& part : PartsOf(range))
    work.push_back(dims_.dp.ReduceSumAsync(SliceOf(values, part.range, range.begin), part.owner,
                                           fmt::format("gradients from {}", part.range.begin)));
  return work;
}

void ZeroUnits::SendOff(Run& run) {
  leaving_.push_back({run.grads, run.range, ReduceToOwners(run.grads, run.range)});
  leaving_elements_ += run.range.size();
  run.grads = Tensor();
  Place(run);
  Settle(bucket_);
}

// Waits for the oldest until at most `keep` elements are in flight.
void ZeroUnits::Settle(uint64_t keep) {
  while (!leaving_.empty() && leaving_elements_ > keep) {
    Leaving& oldest = leaving_.front();
    for (Work& work : oldest.work) work.Wait();
    if (shards_grads_) {
      const FlatRange mine = Overlap(oldest.range, parameters_.kept().grads);
      const Touches both = Touches::Both();
      if (mine.size() > 0) {
        const Tensor grads = parameters_.Grads(mine);
        grads.add_(SliceOf(oldest.window, mine, oldest.range.begin).to(grads.device()));
      }
    }
    leaving_elements_ -= oldest.range.size();
    leaving_.erase(leaving_.begin());
  }
}

// Backward completes the buffer from its end to its start: neighbours are reduced together.
void ZeroUnits::NoteComplete(FlatRange range) {
  const bool neighbours = ready_.begin == range.end || range.begin == ready_.end;
  if (ready_.size() > 0 && !neighbours) ReduceReady();
  ready_ = ready_.size() > 0 ? Join(ready_, range) : range;
  if (ready_.size() >= bucket_) ReduceReady();
}

void ZeroUnits::ReduceReady() {
  const FlatRange range = std::exchange(ready_, {0, 0});
  if (dims_.dp.size() == 1) return;
  for (uint64_t begin = range.begin; begin < range.end; begin += bucket_) {
    const FlatRange bucket{begin, std::min(range.end, begin + bucket_)};
    const Tensor values = parameters_.Grads(bucket);
    Leaving leaving{values, bucket, {}};
    if (dims_.topology.zero == 0)
      leaving.work.push_back(dims_.dp.AllReduceSumAsync(values, fmt::format("gradients from {}", begin)));
    else
      leaving.work = ReduceToOwners(values, bucket);
    leaving_.push_back(std::move(leaving));
    leaving_elements_ += bucket.size();
  }
}

}  // namespace cairn
