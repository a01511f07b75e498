#include "runtime/train/data_loader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "runtime/model/gpt.h"

namespace cairn {
namespace {

// Megatron's get_ltor_masks_and_position_ids: loss_mask[data == eod_token] = 0, where data are the inputs.
TEST(DataLoaderTest, TokensAfterAnEndOfDocumentAreNotCounted) {
  TrainConfig config;
  config.micro_batch_size = 2;
  config.seq_length = 4;
  config.vocab_size = 10;
  config.eod = 7;
  const auto batch_of = [&] {
    const auto source = [](uint64_t sample, std::span<int64_t> out) {
      const int64_t tokens[2][5] = {{1, 7, 2, 3, 7}, {7, 7, 4, 7, 5}};
      std::ranges::copy(tokens[sample], out.begin());
      return OkStatus();
    };
    return DataLoader(config, ParallelDims(), at::kCPU, source, 2).Get(0, 0);
  };
  const at::Tensor all = at::tensor({7, 2, 3, 7, 7, 4, 7, 5}, at::kLong).view({2, 4});
  EXPECT_TRUE(batch_of().labels.equal(all));
  config.eod_mask_loss = true;
  config.micro_batch_size = 1;  // tokens and labels share memory
  EXPECT_TRUE(batch_of().tokens.equal(at::tensor({1, 7, 2, 3}, at::kLong).view({1, 4})));
  EXPECT_TRUE(batch_of().labels.equal(at::tensor({7, -1, 3, 7}, at::kLong).view({1, 4})));
  config.micro_batch_size = 2;
  const MicroBatch batch = batch_of();
  EXPECT_TRUE(batch.tokens.equal(at::tensor({1, 7, 2, 3, 7, 7, 4, 7}, at::kLong).view({2, 4})));
  EXPECT_TRUE(batch.labels.equal(at::tensor({7, -1, 3, 7, -1, -1, 7, -1}, at::kLong).view({2, 4})));
}

// Megatron's: position_ids[i + 1:] count from 0 again, and attention_mask[i + 1:, :i + 1] = 0, for each end
// i.
TEST(DataLoaderTest, PositionsAndAttentionRestartAfterAnEndOfDocument) {
  TrainConfig config;
  config.micro_batch_size = 3;
  config.seq_length = 5;
  config.vocab_size = 10;
  config.eod = 7;
  ParallelDims middle;  // of a pipeline
  middle.topology.pp = 3;
  middle.world_rank = 1;
  const auto batch_of = [&](const ParallelDims& dims) {
    const auto source = [](uint64_t sample, std::span<int64_t> out) {
      const int64_t tokens[3][6] = {{1, 7, 2, 3, 7, 4}, {7, 7, 4, 7, 5, 7}, {1, 2, 3, 4, 5, 7}};
      std::ranges::copy(tokens[sample], out.begin());
      return OkStatus();
    };
    return DataLoader(config, dims, at::kCPU, source, 3).Get(0, 0);
  };
  EXPECT_FALSE(batch_of(ParallelDims()).documents.positions.defined());
  EXPECT_FALSE(batch_of(ParallelDims()).documents.first_keys.defined());
  EXPECT_FALSE(batch_of(middle).tokens.defined());
  const at::Tensor positions =
      at::tensor({0, 1, 0, 1, 2, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4}, at::kLong).view({3, 5});
  const at::Tensor begins = at::tensor({0, 0, 2, 2, 2, 0, 1, 2, 2, 4, 0, 0, 0, 0, 0}, at::kLong).view({3, 5});
  config.reset_position_ids = true;
  EXPECT_TRUE(batch_of(middle).documents.positions.equal(positions));
  EXPECT_FALSE(batch_of(middle).documents.first_keys.defined());
  config.reset_position_ids = false;
  config.reset_attention_mask = true;
  EXPECT_FALSE(batch_of(middle).documents.positions.defined());
  EXPECT_TRUE(batch_of(middle).documents.first_keys.equal(begins));
}

}  // namespace
}  // namespace cairn
