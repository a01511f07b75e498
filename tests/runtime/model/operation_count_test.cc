// Kernels that a GPU would launch: operations of a layer and of a micro-batch, counted by RecordFunction.
// They depend on no machine. A budget is today's count; exceeding it means that a GPU would lose time.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <string_view>

#include "ckpt/model/canonical_modules.h"
#include "runtime/config/model_spec.h"
#include "runtime/model/gpt.h"
#include "tests/support/narrow_products.h"

namespace cairn {
namespace {

using at::Tensor;

// Operations that only make a view, allocate memory, or consist of others; sorted.
constexpr std::string_view kNoKernel[] = {"aten::_reshape_alias",
                                          "aten::_safe_softmax",
                                          "aten::_scaled_dot_product_attention_math",
                                          "aten::_to_copy",
                                          "aten::_unsafe_view",
                                          "aten::alias",
                                          "aten::as_strided",
                                          "aten::chunk",
                                          "aten::clone",
                                          "aten::contiguous",
                                          "aten::detach",
                                          "aten::dropout",
                                          "aten::empty",
                                          "aten::empty_like",
                                          "aten::empty_strided",
                                          "aten::expand",
                                          "aten::flatten",
                                          "aten::matmul",
                                          "aten::narrow",
                                          "aten::new_empty",
                                          "aten::new_zeros",
                                          "aten::ones",
                                          "aten::ones_like",
                                          "aten::outer",
                                          "aten::permute",
                                          "aten::reshape",
                                          "aten::resize_",
                                          "aten::resolve_conj",
                                          "aten::result_type",
                                          "aten::scalar_tensor",
                                          "aten::scaled_dot_product_attention",
                                          "aten::select",
                                          "aten::slice",
                                          "aten::softmax",
                                          "aten::split",
                                          "aten::split_with_sizes",
                                          "aten::square",
                                          "aten::squeeze",
                                          "aten::t",
                                          "aten::to",
                                          "aten::transpose",
                                          "aten::unbind",
                                          "aten::unsqueeze",
                                          "aten::view",
                                          "aten::zero_",
                                          "aten::zeros",
                                          "detach"};

// Counts operations of this thread and of autograd's in its lifetime: those that libtorch's dispatcher sees
// and that do more than make a view.
class OperationCount {
 public:
  OperationCount() {
    Current() = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&OperationCount::Note, &OperationCount::End)
                                        .scopes({at::RecordScope::FUNCTION}));
  }
  ~OperationCount() {
    at::removeCallback(handle_);
    Current() = nullptr;
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const auto& [name, count] : counts_) sum += count;
    return sum;
  }
  int64_t Of(const std::string& name) const {
    const auto found = counts_.find(name);
    return found == counts_.end() ? 0 : found->second;
  }
  std::string ToString() const {
    std::string text;
    for (const auto& [name, count] : counts_) text += fmt::format("{} {}, ", count, name);
    return text;
  }

 private:
  static OperationCount*& Current() {
    static OperationCount* current = nullptr;
    return current;
  }
  static std::unique_ptr<at::ObserverContext> Note(const at::RecordFunction& function) {
    const std::string name = function.name();
    OperationCount& now = *Current();
    if (now.norms_ == 0 && !name.starts_with("autograd::") && !std::ranges::binary_search(kNoKernel, name))
      ++now.counts_[name];
    now.norms_ += IsNorm(function);
    return nullptr;
  }
  static void End(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
    Current()->norms_ -= IsNorm(function);
  }
  // One kernel on a GPU, several operations on a CPU.
  static bool IsNorm(const at::RecordFunction& function) {
    return std::string_view(function.name()).starts_with("cairn::norm");
  }

  at::CallbackHandle handle_;
  int norms_ = 0;  // that have begun and not ended
  std::map<std::string, int64_t> counts_;
};

TrainConfig Gpt2(int layers) {
  TrainConfig config;
  config.num_layers = layers;
  config.hidden_size = 64;
  config.num_attention_heads = 4;
  config.vocab_size = 512;
  config.seq_length = 32;
  config.hidden_dropout = config.attention_dropout = 0.1;
  return config;
}

TrainConfig Llama(int layers) {
  TrainConfig config = Gpt2(layers);
  config.hidden_dropout = config.attention_dropout = 0;
  config.normalization = "RMSNorm";
  config.position_embedding_type = "rope";
  config.swiglu = true;
  config.disable_bias_linear = true;
  config.untie_embeddings_and_output_weights = true;
  config.group_query_attention = true;
  config.num_query_groups = 2;
  return config;
}

struct Counted {
  int64_t total = 0;
  int64_t synchronizing = 0;
  std::string text;
};

// Forward and backward of one micro-batch.
Counted CountMicroBatch(const TrainConfig& config) {
  const ParallelDims dims;
  FlatParameters parameters(GptSpecs(config), *LayoutOf(GptSpecs(config), {}, 0), 1, config.dtype(),
                            at::kCPU);
  RandomStreams streams(at::kCPU, config.seed, {}, 0);
  const GptStage stage(config, dims, parameters, streams);
  const Tensor ids = at::randint(config.vocab_size, {2, config.seq_length + 1}, at::kLong);
  const Tensor tokens = ids.narrow(1, 0, config.seq_length).contiguous();
  const Tensor labels = ids.narrow(1, 1, config.seq_length).contiguous();
  const OperationCount count;
  const Tensor loss = stage.Loss(stage.forward(tokens, true), labels);
  torch::autograd::backward({loss}, {at::ones_like(loss)});
  return {count.total(),
          count.Of("aten::item") + count.Of("aten::_local_scalar_dense") + count.Of("aten::nonzero"),
          count.ToString()};
}

// Without the CPU's kernels, which do in one pass what a GPU does in several launches.
class OperationCountTest : public testing::TestWithParam<bool> {
 private:
  const WithoutOneDnn without_;
};

TEST_P(OperationCountTest, CountsOfALayerStayWithinTheirBudget) {
  const auto model = GetParam() ? Llama : Gpt2;
  const Counted few = CountMicroBatch(model(1)), many = CountMicroBatch(model(2));
  const int64_t layer = many.total - few.total, rest = few.total - layer;
  EXPECT_LE(layer, GetParam() ? 73 : 98) << many.text;
  EXPECT_LE(rest, GetParam() ? 86 : 85) << few.text;
}

// A copy to the host, or a size that only the device knows, makes a GPU wait.
TEST_P(OperationCountTest, AMicroBatchNeverWaitsForTheDevice) {
  const Counted counted = CountMicroBatch((GetParam() ? Llama : Gpt2)(2));
  EXPECT_EQ(counted.synchronizing, 0) << counted.text;
}

INSTANTIATE_TEST_SUITE_P(Models, OperationCountTest, testing::Bool(),
                         [](const auto& which) { return which.param ? "Llama" : "Gpt2"; });

}  // namespace
}  // namespace cairn
