#include "tools/check/stored_slices.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(StoredSlices, NamesGiveTheRank) {
  const Topology topology{.tp = 2, .pp = 2, .dp = 4};
  for (const auto& [file, says] : std::initializer_list<std::pair<const char*, const char*>>{
           {"iter_0000100/mp_rank_01_002/model_optim_rng.pt", "tp 1, pp 2"},
           {"iter_0000100/mp_rank_01/distrib_optim.pt", "tp 1, pp 0"},
           {"mp_rank_01_001/model_optim_rng.pt", "tp 1, pp 1"},
           {"global_step5/mp_rank_03_model_states.pt", "tp 1, pp 1"},
           {"global_step5/bf16_zero_pp_rank_3_mp_rank_02_optim_states.pt", "tp 0, pp 1, dp 3"},
           {"zero_pp_rank_2_mp_rank_00_model_states.pt", "tp 0, pp 0, dp 2"},
           {"layer_07-model_01-model_states.pt", "tp 1"},
           {"__3_0.distcp", "rank 3"},
           {"iter_0000100/__12_1.distcp", "rank 12"},
           {"zero/tied_modules.embed.word_embeddings.weight/fp32.pt", "-"},
           {"model-00001-of-00002.safetensors", "-"},
           {"mp_rank_/x.pt", "-"},
           {"__x_0.distcp", "-"}})
    EXPECT_EQ(ToString(RankOfFile(file, topology)), says) << file;
  for (const auto& [file, says] : std::initializer_list<std::pair<const char*, const char*>>{
           {"mp_rank_01_002/model_optim_rng.pt", "tp 1, pp 0, ep 2"},
           {"mp_rank_01/model_optim_rng.pt", "tp 1, pp 0"},
           {"mp_rank_01_002_003/model_optim_rng.pt", "tp 1, pp 2, ep 3"},
           {"expp_rank_3_mp_rank_01_optim_states.pt", "tp 1, pp 0, ep 3"}})
    EXPECT_EQ(ToString(RankOfFile(file, {.tp = 2, .dp = 4, .ep = 4})), says) << file;
}

}  // namespace
}  // namespace cairn
