#include "runtime/model/layers/linear_weight.h"

#include <ATen/ATen.h>

#include "runtime/model/gemm/gemm.h"

namespace cairn {
namespace {

using at::Tensor;

// While one lives, the tile has its value or its gradient, as `use` says.
class TileInUse {
 public:
  TileInUse(UnitHooks* hooks, const ParameterTile& tile, TileUse use)
      : hooks_(hooks), tile_(tile), use_(use) {
    if (hooks_ != nullptr) hooks_->BeforeTile(tile_.number, use_);
  }
  ~TileInUse() {
    if (hooks_ != nullptr) hooks_->AfterTile(tile_.number, use_);
  }
  TileInUse(const TileInUse&) = delete;
  TileInUse& operator=(const TileInUse&) = delete;

 private:
  UnitHooks* hooks_;
  const ParameterTile& tile_;
  TileUse use_;
};

// The columns of an output that a tile's rows make.
Tensor ColumnsOf(const Tensor& y, const ParameterTile& tile) { return y.narrow(1, tile.row, tile.rows); }

}  // namespace

Tensor LinearWeight::Forward(const Tensor& x, const Tensor& bias) const {
  return tiles_.size() == 1 ? LinearForward(x, tiles_[0].parameter.value(), bias) : TiledForward(x, bias);
}

Tensor LinearWeight::TiledForward(const Tensor& x, const Tensor& bias) const {
  const Tensor y = at::empty({x.size(0), tiles_.back().row + tiles_.back().rows}, x.options());
  for (const ParameterTile& tile : tiles_) {
    const TileInUse use(hooks_, tile, TileUse::kValue);
    const Tensor part = bias.defined() ? bias.narrow(0, tile.row, tile.rows) : bias;
    ColumnsOf(y, tile).copy_(LinearForward(x, tile.parameter.value(), part));
  }
  return y;
}

Tensor LinearWeight::InputGrad(const Tensor& dy) const {
  if (tiles_.size() == 1) return LinearInputGrad(dy, tiles_[0].parameter.value());
  Tensor dx;
  for (const ParameterTile& tile : tiles_) {
    const TileInUse use(hooks_, tile, TileUse::kValue);
    const Tensor part = LinearInputGrad(ColumnsOf(dy, tile), tile.parameter.value());
    dx = dx.defined() ? dx.add_(part) : part;
  }
  return dx;
}

void LinearWeight::AddGrad(const Tensor& dy, const Tensor& x) const {
  if (tiles_.size() == 1) return AddLinearWeightGrad(tiles_[0].parameter.grad(), dy, x);
  for (const ParameterTile& tile : tiles_) {
    const TileInUse use(hooks_, tile, TileUse::kGrad);
    AddLinearWeightGrad(tile.parameter.grad(), ColumnsOf(dy, tile), x);
  }
}

}  // namespace cairn
