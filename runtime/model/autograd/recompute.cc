#include "runtime/model/autograd/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "runtime/model/autograd/autograd.h"

namespace cairn {
namespace {

using at::Tensor;

// Puts the random streams back where they were, at the end of the scope.
class StreamsAt {
 public:
  StreamsAt(RandomStreams& streams, const std::string& state) : streams_(streams), now_(streams.SaveState()) {
    Load(state);
  }
  ~StreamsAt() { Load(now_); }

 private:
  void Load(const std::string& state) {
    const Status status = streams_.LoadState(state);
    TORCH_INTERNAL_ASSERT(status.ok(), status.message());
  }
  RandomStreams& streams_;
  std::string now_;
};

}  // namespace

Tensor Recompute(const std::function<Tensor(const Tensor&)>& block, const Tensor& x, RandomStreams& streams,
                 const Keeping& keeping) {
  return Recompute([block](const std::vector<Tensor>& inputs) { return block(inputs[0]); },
                   std::vector<Tensor>{x}, streams, keeping);
}

Tensor Recompute(const BlockOfMany& block, const std::vector<Tensor>& inputs, RandomStreams& streams,
                 const Keeping& keeping) {
  const ByHand by_hand(inputs);
  const std::string state = streams.SaveState();
  const Tensor y = block(inputs);
  std::vector<KeptActivation> kept;
  for (const Tensor& input : inputs) kept.emplace_back(input, keeping);
  return by_hand.Finish(y, [block, kept, state, &streams](const Tensor& dy) {
    const at::AutoGradMode grad(true);
    const StreamsAt then(streams, state);
    std::vector<Tensor> again;
    for (const KeptActivation& input : kept) again.push_back(input.Get().detach().requires_grad_());
    torch::autograd::backward({block(again)}, {dy});
    std::vector<Tensor> grads;
    for (const Tensor& input : again) grads.push_back(input.grad());
    return grads;
  });
}

}  // namespace cairn
