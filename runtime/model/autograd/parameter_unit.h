// A unit of the model: parameters that are used together, as those of one transformer layer, and what happens
// around their use.
//
// The model names its units by their place: kBeforeLayers (embedding), 0, 1, ... (layers), kAfterLayers (norm
// and output layer). Code that keeps parameters elsewhere (ZeRO-3), or needs gradients as soon as they are
// complete (ZeRO-2), watches them; the layers do not know of it.
#pragma once

#include <ATen/Tensor.h>

#include <cstddef>
#include <functional>

namespace cairn {

// The use of a tile of a weight.
enum class TileUse { kValue, kGrad };

class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  // The unit's parameters must have values, and in backward gradients too, until the matching call.
  // In one backward of a unit, forward may run again (recomputation); calls nest.
  virtual void BeforeForward(int unit) = 0;
  virtual void AfterForward(int unit) = 0;
  virtual void BeforeBackward(int unit) = 0;
  virtual void AfterBackward(int unit) = 0;  // its gradients of this micro-batch are complete

  // Parameters in tiles (FlatParameters::Tiles) do not come with their unit: the tile of this number must
  // have its value, or a gradient that gets all of this micro-batch, until the matching call.
  virtual void BeforeTile(size_t /*tile*/, TileUse /*use*/) {}
  virtual void AfterTile(size_t /*tile*/, TileUse /*use*/) {}
};

// block(x), between the hooks of `unit`; the same for its backward. Without hooks just block(x). `hooks` must
// outlive backward.
at::Tensor RunUnit(UnitHooks* hooks, int unit, const std::function<at::Tensor(const at::Tensor&)>& block,
                   const at::Tensor& x);

}  // namespace cairn
