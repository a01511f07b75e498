// Judges the experts of a checkpoint by their values: none is a copy of another, and none has the values of
// an initialization while the others were trained. Savers that wrote the experts of one rank for those of
// another, and converters that left experts as the model's constructor made them, did so without an error
// (Megatron-LM#1836, verl#2086, Megatron-Bridge#3740, #4706).
//
// Whatever a training can leave behind is a note only. A model that is made of copies begins with equal
// experts. An expert that no token was routed to stays as it was initialized, without moments.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/manifest.h"
#include "tools/check/expert_values.h"

namespace cairn {

struct ExpertVerdict {
  std::vector<std::string> lost;   // no training leaves these
  std::vector<std::string> notes;  // the values cannot tell
};

ExpertVerdict JudgeExperts(const Manifest& manifest, const ExpertCensus& census, const ExpertValues& values);

}  // namespace cairn
