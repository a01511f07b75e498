// Regions of tensors that lie whole in one place, for invented sources.
#pragma once

#include "ckpt/model/catalog.h"

namespace cairn {

inline RegionList WholeRegions(const TensorTable& table) {
  std::vector<Region> regions;
  for (uint32_t i = 0; i < table.tensors.size(); ++i)
    regions.push_back(Region::Whole(i, 0, Box::Whole(table.tensors[i].spec.shape)));
  return RegionList(std::move(regions));
}

}  // namespace cairn
