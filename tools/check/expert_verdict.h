// Judges the experts of a checkpoint by their values: copies of one another, and values of an initialization
// while others were trained. Savers that wrote the experts of one rank for those of another, and converters
// that left experts as the model's constructor made them, did so without an error (Megatron-LM#1836,
// verl#2086, Megatron-Bridge#3740, #4706).
//
// Whatever somebody can have meant is a note only: frozen, upcycled, merged, masked and new experts.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/manifest.h"
#include "tools/check/expert_values.h"

namespace cairn {

struct ExpertVerdict {
  std::vector<std::string> lost;   // nobody can have meant these
  std::vector<std::string> notes;  // the values cannot tell
};

ExpertVerdict JudgeExperts(const Manifest& manifest, const ExpertCensus& census, const ExpertValues& values);

}  // namespace cairn
