#include "tools/plan/stage_layers.h"

#include <cmath>

namespace cairn {
namespace {

// How many fewer layers than a middle stage an end of the pipeline may have. An embedding takes almost no
// time, an output layer as much as a few layers.
constexpr int64_t kMostLessFirst = 2;
constexpr int64_t kMostLessLast = 8;

// Layers of each stage whose number is not given.
int64_t OtherLayers(const ModelShape& shape, const RunSetup& setup) {
  const int64_t told = (setup.first_layers > 0) + (setup.last_layers > 0);
  const int64_t left = shape.layers - setup.first_layers - setup.last_layers;
  return setup.pp > told ? left / (setup.pp - told) : 0;
}

// Megatron-LM takes one less at either end together with chunks that the rest of the stage fills; other ends
// must be whole chunks themselves.
bool IsAccountedFor(int64_t less_first, int64_t less_last) { return less_first <= 1 && less_last <= 1; }

}  // namespace

StageLayers PlannedStages(const ModelShape& shape, const RunSetup& setup) {
  const double all = static_cast<double>(shape.layers);
  if (setup.pp == 1) return {all, all, all};
  if (setup.first_layers > 0 || setup.last_layers > 0) {
    const double others = static_cast<double>(OtherLayers(shape, setup));
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

bool StagesAreWhole(const ModelShape& shape, const RunSetup& setup) {
  if (setup.first_layers == 0 && setup.last_layers == 0) {
    if (setup.program == Program::kCairn && setup.virtual_stages == 1) return setup.pp <= shape.layers;
    return shape.layers % (setup.pp * setup.virtual_stages) == 0;
  }
  const int64_t told = (setup.first_layers > 0) + (setup.last_layers > 0);
  const int64_t left = shape.layers - setup.first_layers - setup.last_layers;
  if (setup.pp == told) return left == 0;
  return setup.pp > told && left > 0 && left % (setup.pp - told) == 0;
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
