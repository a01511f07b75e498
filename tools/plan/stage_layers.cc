#include "tools/plan/stage_layers.h"

#include <cmath>

namespace cairn {
namespace {

// How many fewer layers than a middle stage an end of the pipeline may have. An embedding takes almost no
// time, an output layer as much as a few layers.
constexpr int64_t kMostLessFirst = 2;
constexpr int64_t kMostLessLast = 8;

// The stages whose number of layers is not given, and their layers.
struct OtherStages {
  int64_t stages, layers;
};
OtherStages OthersOf(const ModelShape& shape, const RunSetup& setup) {
  return {setup.pp - (setup.first_layers > 0) - (setup.last_layers > 0),
          shape.layers - setup.first_layers - setup.last_layers};
}

// Megatron-LM takes one less at either end together with chunks that the rest of the stage fills; other ends
// must be whole chunks themselves.
bool IsAccountedFor(int64_t less_first, int64_t less_last) { return less_first <= 1 && less_last <= 1; }

}  // namespace

StageLayers PlannedStages(const ModelShape& shape, const RunSetup& setup) {
  const double all = static_cast<double>(shape.layers);
  if (setup.pp == 1) return {all, all, all};
  if (setup.first_layers > 0 || setup.last_layers > 0) {
    const auto [stages, left] = OthersOf(shape, setup);
    const double others = stages > 0 ? static_cast<double>(left / stages) : 0;
    return {setup.first_layers > 0 ? static_cast<double>(setup.first_layers) : others,
            setup.pp > 2 ? others : 0,
            setup.last_layers > 0 ? static_cast<double>(setup.last_layers) : others};
  }
  const double most = std::ceil(all / setup.pp);
  if (setup.program != Program::kCairn) return {most, most, most};
  const int64_t rest =
      shape.layers % setup.pp;  // the first stages take it, one each (ckpt/model/placement.h)
  const double least = std::floor(all / setup.pp);
  return {most, rest == 1 ? least : most, least};
}

RankParams ParamsOfRank(const ParameterCounts& counts, const RunSetup& setup) {
  return {(counts.all - counts.whole - counts.experts) / setup.tp + counts.whole,
          counts.experts / (setup.ep * setup.etp)};
}

RankParams ParamsOfRank(const ModelShape& shape, double first, double layers, const RunSetup& setup) {
  RankParams params;
  const auto begin = static_cast<uint64_t>(first), end = static_cast<uint64_t>(first + layers);
  shape.modules.ForEachKind(begin, end, [&](const ModuleSet& kind, double count) {
    const RankParams one = ParamsOfRank(shape.CountsOf(kind), setup);
    params.dense += count * one.dense;
    params.experts += count * one.experts;
  });
  return params;
}

bool StagesAreWhole(const ModelShape& shape, const RunSetup& setup) {
  if (setup.first_layers == 0 && setup.last_layers == 0) {
    if (setup.program == Program::kCairn && setup.virtual_stages == 1) return setup.pp <= shape.layers;
    return shape.layers % (setup.pp * setup.virtual_stages) == 0;
  }
  const auto [stages, left] = OthersOf(shape, setup);
  return stages == 0 ? left == 0 : stages > 0 && left > 0 && left % stages == 0;
}

std::vector<StageEnds> UnevenEnds(const ModelShape& shape, const RunSetup& setup) {
  std::vector<StageEnds> ends;
  if (setup.pp == 1 || setup.program == Program::kCairn) return ends;
  const int64_t pp = setup.pp, chunks = setup.virtual_stages;
  for (int64_t first = 0; first <= kMostLessFirst; ++first)
    for (int64_t last = 0; last <= kMostLessLast; ++last) {
      if (first + last == 0 || (pp == 2 && std::min(first, last) > 0)) continue;  // the same as with less
      const int64_t counted = shape.layers + first + last;
      const int64_t middle = counted / pp;
      if (counted % pp != 0 || middle <= std::max(first, last)) continue;
      if (setup.program == Program::kMegatronDeepSpeed) {
        const bool told = first == 1 && last == 1 && shape.tied && chunks == 1;  // type:transformer|embedding
        if (!told) continue;
      }
      if (middle % chunks != 0) continue;
      if (!IsAccountedFor(first, last) && (first % chunks != 0 || last % chunks != 0)) continue;
      ends.push_back({middle - first, middle - last});
    }
  return ends;
}

}  // namespace cairn
