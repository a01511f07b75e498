// A linear layer's weight [out, in], and the products with it: whole, or in tiles of neighbouring rows, each
// of which is present only while it is used (--memory-centric-tiled-linear).
//
// After DeepSpeed's TiledLinear, which cuts both sides and has a parameter for each tile. Here only rows are
// cut, because only they are contiguous. So it stays one parameter, and only the input's gradient needs a
// sum.
#pragma once

#include <ATen/Tensor.h>

#include <utility>
#include <vector>

#include "runtime/model/autograd/parameter_unit.h"
#include "runtime/model/parameters/flat_parameters.h"

namespace cairn {

class LinearWeight {
 public:
  explicit LinearWeight(Parameter whole) : tiles_{{.parameter = std::move(whole)}} {}
  // `hooks` make the tiles present if there are several and they are not always present; or null.
  LinearWeight(std::vector<ParameterTile> tiles, UnitHooks* hooks)
      : tiles_(std::move(tiles)), hooks_(hooks) {}

  // As those of gemm.h. `x` [n, in], `dy` [n, out]; `bias` [out] may be undefined.
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& bias) const;
  at::Tensor InputGrad(const at::Tensor& dy) const;
  void AddGrad(const at::Tensor& dy, const at::Tensor& x) const;

 private:
  at::Tensor TiledForward(const at::Tensor& x, const at::Tensor& bias) const;

  std::vector<ParameterTile> tiles_;
  UnitHooks* hooks_ = nullptr;
};

}  // namespace cairn
