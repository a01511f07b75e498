// One rank's parameters in one flat buffer, and their gradients in another (fp32), laid out by
// ckpt/model/placement.h.
//
// Layers hold views. The buffers are what is reduced, gathered, optimized and saved: no packing anywhere.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/placement.h"
#include "runtime/model/autograd.h"

namespace cairn {

at::ScalarType ToScalarType(Dtype dtype);  // of fp32, fp16, bf16

class FlatParameters {
 public:
  // Zeros. Both buffers have dp * layout.partition_size elements.
  FlatParameters(std::vector<ParameterSpec> specs, RankLayout layout, int dp, Dtype dtype, at::Device device);

  // A parameter, or several that follow each other and differ in dimension 0 only: a fused one.
  // Errors: c10::Error when this rank does not hold it, or they do not follow each other.
  Parameter View(const std::vector<std::string>& names) const;
  Parameter View(const std::string& name) const { return View(std::vector<std::string>{name}); }

  // The place of a parameter on this rank. Errors: c10::Error when it has none.
  const LocalParameter& Local(const std::string& name) const;
  const ParameterSpec& SpecOf(const LocalParameter& local) const { return specs_[local.index]; }

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const RankLayout& layout() const { return layout_; }
  Dtype dtype() const { return dtype_; }
  const at::Tensor& weights() const { return weights_; }
  const at::Tensor& grads() const { return grads_; }

 private:
  std::vector<ParameterSpec> specs_;
  RankLayout layout_;
  Dtype dtype_;
  at::Tensor weights_;
  at::Tensor grads_;
};

}  // namespace cairn
