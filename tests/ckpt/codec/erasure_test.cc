#include "ckpt/codec/erasure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <numeric>
#include <random>

namespace cairn {
namespace {

using Block = std::vector<std::byte>;

Block RandomBlock(std::mt19937& random, size_t bytes) {
  Block block(bytes);
  for (std::byte& b : block) b = static_cast<std::byte>(random());
  return block;
}

Block Sum(const ErasureCode& code, int target, const std::vector<int>& sources,
          const std::vector<Block>& blocks) {
  std::vector<const std::byte*> data;
  for (int source : sources) data.push_back(blocks[source].data());
  Block out(blocks[sources[0]].size());
  code.Express(target, sources).Compute(data, out.data(), out.size());
  return out;
}

std::vector<Block> Encode(const ErasureCode& code, std::mt19937& random, size_t bytes) {
  std::vector<int> data(code.data());
  std::iota(data.begin(), data.end(), 0);
  std::vector<Block> blocks;
  for (int i = 0; i < code.data(); ++i) blocks.push_back(RandomBlock(random, bytes));
  for (int i = 0; i < code.parity(); ++i) blocks.push_back(Sum(code, code.data() + i, data, blocks));
  return blocks;
}

TEST(Erasure, AnyEnoughBlocksRestoreTheRest) {
  std::mt19937 random(1);
  for (int data = 1; data <= 6; ++data) {
    for (int parity = 1; parity <= 4; ++parity) {
      const ErasureCode code = ErasureCode::Make(data, parity).value();
      const std::vector<Block> blocks = Encode(code, random, 1 + random() % 200);  // odd lengths too
      for (unsigned kept = 0; kept < 1U << blocks.size(); ++kept) {
        if (std::popcount(kept) != data) continue;
        std::vector<int> sources;
        for (size_t i = 0; i < blocks.size(); ++i)
          if (kept >> i & 1) sources.push_back(static_cast<int>(i));
        std::ranges::shuffle(sources, random);
        for (size_t lost = 0; lost < blocks.size(); ++lost)
          ASSERT_EQ(Sum(code, static_cast<int>(lost), sources, blocks), blocks[lost])
              << data << "+" << parity << " kept " << kept << " lost " << lost;
      }
    }
  }
}

TEST(Erasure, TheLargestCodesRestoreEverything) {
  std::mt19937 random(2);
  for (int parity : {1, 2, 8, 16, kMaxCodeBlocks - 1}) {
    const ErasureCode code = ErasureCode::Make(kMaxCodeBlocks - parity, parity).value();
    const std::vector<Block> blocks = Encode(code, random, 63);
    std::vector<int> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    for (int trial = 0; trial < 50; ++trial) {
      std::ranges::shuffle(order, random);
      const std::vector<int> sources(order.begin(), order.begin() + code.data());
      for (int lost : order) ASSERT_EQ(Sum(code, lost, sources, blocks), blocks[lost]);
    }
  }
}

TEST(Erasure, TheFirstParityBlockIsTheXor) {
  std::mt19937 random(3);
  for (int parity : {1, 3}) {
    const ErasureCode code = ErasureCode::Make(5, parity).value();
    const std::vector<Block> blocks = Encode(code, random, 1000);
    Block sum(1000);
    for (int i = 0; i < 5; ++i)
      for (size_t at = 0; at < sum.size(); ++at) sum[at] ^= blocks[i][at];
    EXPECT_EQ(sum, blocks[5]);
  }
}

TEST(Erasure, RefusesImpossibleCodes) {
  EXPECT_FALSE(ErasureCode::Make(0, 1).ok());
  EXPECT_FALSE(ErasureCode::Make(3, 0).ok());
  EXPECT_FALSE(ErasureCode::Make(kMaxCodeBlocks, 1).ok());
  EXPECT_FALSE(ErasureCode::Make(INT_MAX, INT_MAX).ok());
}

}  // namespace
}  // namespace cairn
