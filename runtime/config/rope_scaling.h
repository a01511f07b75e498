// How the frequencies of rotary positions are stretched beyond the length that a model was trained at first.
//
// The kinds and the names of their fields are those of transformers' rope_parameters (modeling_rope_utils.py,
// 5.23): linear, dynamic (NTK), yarn, longrope, llama3. rotary.h computes the frequencies.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

struct RopeScaling {
  enum class Kind { kNone, kLinear, kDynamic, kYarn, kLongRope, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1;
  double original_positions = 0;  // yarn, longrope, llama3: those that it was first trained with
  double attention_factor = 0;    // of cosines and sines; 0: the kind's default
  // yarn
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  // longrope: of each frequency, up to original_positions and beyond
  std::vector<double> short_factor;
  std::vector<double> long_factor;
  bool operator==(const RopeScaling&) const = default;
};

// Reads a manifest's rope_scaling, which may be null. `positions`: the model's max_position_embeddings;
// `frequencies`: half the elements of a head that rotate.
// Errors: NotSupported naming a kind or field that is not known; InvalidArgument naming a missing or
// ill-typed one.
Result<RopeScaling> ReadRopeScaling(const nlohmann::json& scaling, double positions, int64_t frequencies);

}  // namespace cairn
