#include "convert/foreign/file_sets.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

// The path of the missing file; empty if none is missing.
std::string Missing(std::string_view pattern, const std::vector<std::string>& files) {
  const std::string message = CheckFileSets(pattern, "dir", files).message();
  return message.substr(0, message.find(": "));
}

TEST(FileSets, NamesMissingFilesOfRanks) {
  EXPECT_EQ(Missing("rng_state_#.pth", {"rng_state_0.pth", "rng_state_1.pth", "rng_state.pth"}), "");
  EXPECT_EQ(Missing("rng_state_#.pth", {"rng_state_1.pth"}), "dir/rng_state_0.pth");
  EXPECT_EQ(Missing("rng_state_#.pth", {"a/rng_state_0.pth", "rng_state_2.pth", "rng_state_0.pth"}),
            "dir/rng_state_1.pth");
  EXPECT_EQ(Missing("zero_pp_rank_#_mp_rank_#_optim.pt",
                    {"zero_pp_rank_0_mp_rank_00_optim.pt", "zero_pp_rank_10_mp_rank_01_optim.pt"}),
            "dir/zero_pp_rank_0_mp_rank_01_optim.pt");
}

TEST(FileSets, NamesMissingFilesOfParameters) {
  const std::string pattern = "zero/*/*.pt";
  EXPECT_EQ(Missing(pattern, {"zero/a/fp32.pt", "zero/b/fp32.pt", "zero/step.pt"}), "");
  EXPECT_EQ(Missing(pattern, {"x/zero/a/fp32.pt", "x/zero/b/fp32.pt", "x/zero/b/step.pt"}),
            "dir/x/zero/a/step.pt");
}

TEST(FileSets, NamesMissingFoldersOfRanks) {
  const std::string pattern = "mp_rank_#/*.pt";
  EXPECT_EQ(Missing(pattern, {"iter_1/mp_rank_00/model.pt", "iter_2/mp_rank_00/optim.pt"}), "");
  EXPECT_EQ(Missing(pattern, {"mp_rank_00/model.pt", "mp_rank_02/model.pt"}), "dir/mp_rank_01/model.pt");
}

}  // namespace
}  // namespace cairn
