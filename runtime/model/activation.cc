#include "runtime/model/activation.h"

#include <torch/torch.h>

#include "ckpt/base/simd.h"
#include "runtime/model/autograd.h"
#include "runtime/model/vector_math.h"

namespace cairn {

namespace {

using at::Tensor;

// On a CPU libtorch takes one pass of memory for each of a function's parts, and an exact but slow tanh.
// These take one pass for all, over rows [first, last).

// in [rows, 2f] -> out [rows, f]: silu of the first half times the second.
template <typename Word>
CAIRN_SIMD_CLONES void GateRows(const Word* in, int64_t first, int64_t last, int64_t f, Word* out) {
  for (int64_t row = first; row < last; ++row) {
    const Word *gate = in + row * 2 * f, *up = gate + f;
    for (int64_t i = 0; i < f; ++i) {
      const float x = Wide(gate[i]);
      Round(x * SigmoidOf(x) * Wide(up[i]), out[row * f + i]);
    }
  }
}
template <typename Word>
CAIRN_SIMD_CLONES void GateRowsBack(const Word* in, const Word* dout, int64_t first, int64_t last, int64_t f,
                                    Word* din) {
  for (int64_t row = first; row < last; ++row) {
    const Word *gate = in + row * 2 * f, *up = gate + f;
    Word *dgate = din + row * 2 * f, *dup = dgate + f;
    for (int64_t i = 0; i < f; ++i) {
      const float x = Wide(gate[i]), dy = Wide(dout[row * f + i]), sigmoid = SigmoidOf(x);
      Round(dy * Wide(up[i]) * sigmoid * (1 + x * (1 - sigmoid)), dgate[i]);
      Round(dy * x * sigmoid, dup[i]);
    }
  }
}

// GELU by tanh: (1 + tanh u) / 2 is the sigmoid of 2u, u = sqrt(2 / pi) (x + 0.044715 x³).
constexpr float kTwiceRoot = 1.5957691216F, kCubic = 0.044715F;
template <typename Word>
CAIRN_SIMD_CLONES void GeluTanh(const Word* in, int64_t first, int64_t last, Word* out) {
  for (int64_t i = first; i < last; ++i) {
    const float x = Wide(in[i]);
    Round(x * SigmoidOf(kTwiceRoot * (x + kCubic * x * x * x)), out[i]);
  }
}
template <typename Word>
CAIRN_SIMD_CLONES void GeluTanhBack(const Word* in, const Word* dout, int64_t first, int64_t last,
                                    Word* din) {
  for (int64_t i = first; i < last; ++i) {
    const float x = Wide(in[i]), sigmoid = SigmoidOf(kTwiceRoot * (x + kCubic * x * x * x));
    const float slope = kTwiceRoot * (1 + 3 * kCubic * x * x);
    Round(Wide(dout[i]) * sigmoid * (1 + x * (1 - sigmoid) * slope), din[i]);
  }
}

constexpr int64_t kElementsOfTask = 1 << 14;

Tensor GeluByTanh(const Tensor& given) {
  if (!HasWords(given)) return at::gelu(given, "tanh");
  const ByHand by_hand({given});
  const Tensor x = given.contiguous(), y = at::empty_like(x);
  VisitParts(x, x.numel(), kElementsOfTask, [&]<typename T>(T, int64_t first, int64_t last) {
    GeluTanh(Words(x.data_ptr<T>()), first, last, Words(y.data_ptr<T>()));
  });
  return by_hand.Finish(y, [x](const Tensor& given_dy) -> std::vector<Tensor> {
    const Tensor dy = given_dy.contiguous(), dx = at::empty_like(x);
    VisitParts(x, x.numel(), kElementsOfTask, [&]<typename T>(T, int64_t first, int64_t last) {
      GeluTanhBack(Words(x.data_ptr<T>()), Words(dy.data_ptr<T>()), first, last, Words(dx.data_ptr<T>()));
    });
    return {dx};
  });
}

// Where there are no loops of ours.
Tensor GateBySilu(const Tensor& gate_and_up, int64_t f) {
  return at::silu(gate_and_up.narrow(-1, 0, f)).mul_(gate_and_up.narrow(-1, f, f));
}
Tensor GateBySiluGrad(const Tensor& gate_and_up, int64_t f, const Tensor& dy) {
  const Tensor gate = gate_and_up.narrow(-1, 0, f), up = gate_and_up.narrow(-1, f, f);
  Tensor grad = at::empty_like(gate_and_up);
  grad.narrow(-1, f, f).copy_(at::silu(gate).mul_(dy));
  grad.narrow(-1, 0, f).copy_(at::silu_backward(dy * up, gate));
  return grad;
}

Tensor GateInOnePass(const Tensor& x, int64_t f) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = f;
  const Tensor y = at::empty(sizes, x.options());
  VisitParts(x, y.numel() / f, 1 + kElementsOfTask / f, [&]<typename T>(T, int64_t first, int64_t last) {
    GateRows(Words(x.data_ptr<T>()), first, last, f, Words(y.data_ptr<T>()));
  });
  return y;
}
Tensor GateGradInOnePass(const Tensor& x, int64_t f, const Tensor& given_dy) {
  const Tensor dy = given_dy.contiguous(), dx = at::empty_like(x);
  VisitParts(x, dy.numel() / f, 1 + kElementsOfTask / f, [&]<typename T>(T, int64_t first, int64_t last) {
    GateRowsBack(Words(x.data_ptr<T>()), Words(dy.data_ptr<T>()), first, last, f, Words(dx.data_ptr<T>()));
  });
  return dx;
}

}  // namespace

Tensor Activate(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x, "none");
    case Activation::kGeluTanh:
      return GeluByTanh(x);
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSquaredRelu:
      return at::relu(x).square();
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kLinear:
      return x;
  }
  TORCH_CHECK(false, "no such activation");
}

Tensor ActivateGated(Activation activation, const Tensor& gate_and_up) {
  const int64_t f = gate_and_up.size(-1) / 2;
  if (activation != Activation::kSilu)
    return Activate(activation, gate_and_up.narrow(-1, 0, f)) * gate_and_up.narrow(-1, f, f);
  const ByHand by_hand({gate_and_up});
  const bool one_pass = HasWords(gate_and_up);
  const Tensor x = one_pass ? gate_and_up.contiguous() : gate_and_up;
  return by_hand.Finish(one_pass ? GateInOnePass(x, f) : GateBySilu(x, f),
                        [x, f, one_pass](const Tensor& dy) -> std::vector<Tensor> {
                          return {one_pass ? GateGradInOnePass(x, f, dy) : GateBySiluGrad(x, f, dy)};
                        });
}

}  // namespace cairn
