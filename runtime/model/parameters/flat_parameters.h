// One rank's parameters in one flat buffer, and their gradients in another (fp32), laid out by
// ckpt/model/placement.h.
//
// Layers hold views. The buffers themselves are reduced, gathered, optimized and saved: nothing is packed.
// If a rank keeps only a part of a buffer (ZeRO), its views are empty until its owner places them
// (runtime/train/zero.h).
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/placement.h"
#include "runtime/model/parameters/memory_side.h"
#include "runtime/model/parameters/parameter.h"

namespace cairn {

at::ScalarType ToScalarType(Dtype dtype);  // of fp32, fp16, bf16

// Some neighbouring rows of a parameter.
struct ParameterTile {
  Parameter parameter;
  int64_t row = 0, rows = 0;
  size_t number = 0;  // its place in FlatParameters::views
};

class FlatParameters {
 public:
  // The parts of the two buffers that this rank keeps from step to step, and where.
  struct Kept {
    FlatRange weights;
    FlatRange grads;
    Side weights_side = Side::kDevice;
    Side grads_side = Side::kDevice;
  };
  // A handle that was given out: elements `range` of the buffer, as a tensor of `shape`. `whole`: of the
  // tile's parameter, otherwise `range`.
  struct PlacedView {
    FlatRange range;
    std::vector<int64_t> shape;
    Parameter parameter;
    FlatRange whole;

    bool is_tile() const { return range.size() < whole.size(); }
  };

  // Zeros. Both buffers have dp * layout.dense.partition_size elements, and all are kept.
  FlatParameters(std::vector<ParameterSpec> specs, RankLayout layout, int dp, Dtype dtype, at::Device device);
  // Computes on `device`, even if state is kept elsewhere.
  FlatParameters(std::vector<ParameterSpec> specs, RankLayout layout, Dtype dtype, at::Device device,
                 const Kept& kept);

  // A parameter, or several that follow each other and differ in dimension 0 only: a fused one.
  // Errors: c10::Error when this rank does not hold it, or they do not follow each other.
  Parameter View(const std::vector<std::string>& names);
  Parameter View(const std::string& name) { return View(std::vector<std::string>{name}); }
  // The same in `count` tiles of about as many rows; fewer if there are fewer rows.
  std::vector<ParameterTile> Tiles(const std::vector<std::string>& names, int count);
  const std::vector<PlacedView>& views() const { return views_; }

  // True if this rank holds the parameter.
  bool Has(const std::string& name) const { return Find(name) != nullptr; }
  // The place of a parameter on this rank. Errors: c10::Error when it has none.
  const LocalParameter& Local(const std::string& name) const;
  const ParameterSpec& SpecOf(const LocalParameter& local) const { return specs_[local.index]; }

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const RankLayout& layout() const { return layout_; }
  Dtype dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  const Kept& kept() const { return kept_; }
  const at::Tensor& weights() const { return weights_; }  // those kept
  const at::Tensor& grads() const { return grads_; }      // those kept
  // The parameters that are kept, by their place in the whole buffer.
  at::Tensor Weights(FlatRange range) const;
  at::Tensor Grads(FlatRange range) const;
  // Sets those of a parameter's weights that are kept. `values`: its shape in memory, flattened.
  void SetWeights(const LocalParameter& local, const at::Tensor& values);
  void ZeroGrads();

 private:
  // Where parameters that follow each other lie, as one.
  struct Fused {
    FlatRange range;
    std::vector<int64_t> shape;
  };
  const LocalParameter* Find(const std::string& name) const;
  Fused Fuse(const std::vector<std::string>& names) const;
  Parameter GiveOut(FlatRange range, std::vector<int64_t> shape, FlatRange whole);

  std::vector<ParameterSpec> specs_;
  RankLayout layout_;
  Dtype dtype_;
  at::Device device_;
  Kept kept_;
  at::Tensor weights_;
  at::Tensor grads_;
  std::vector<PlacedView> views_;
};

// Elements [range) of `flat`, whose first element is number `origin`.
at::Tensor SliceOf(const at::Tensor& flat, FlatRange range, uint64_t origin);

}  // namespace cairn
