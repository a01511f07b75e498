#include "runtime/model/recompute.h"

#include <torch/torch.h>

#include "runtime/model/autograd.h"

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

Tensor Recompute(const std::function<Tensor(const Tensor&)>& block, const Tensor& x, RandomStreams& streams) {
  const ByHand by_hand({x});
  const std::string state = streams.SaveState();
  const Tensor y = block(x);
  return by_hand.Finish(y, [block, x, state, &streams](const Tensor& dy) -> std::vector<Tensor> {
    const at::AutoGradMode grad(true);
    const StreamsAt then(streams, state);
    const Tensor input = x.detach().requires_grad_();
    torch::autograd::backward({block(input)}, {dy});
    return {input.grad()};
  });
}

}  // namespace cairn
