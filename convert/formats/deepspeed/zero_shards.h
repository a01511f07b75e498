// DeepSpeed's ZeRO shards: flattened buffers, of which each data parallel rank holds a stretch, as arrays
// of the parameters in them.
//
// Source: deepspeed 0.19 runtime/zero/stage_1_and_2.py, stage3.py, bf16_optimizer.py and
// utils/zero_to_fp32.py.
#pragma once

#include <string>
#include <vector>

#include "convert/formats/deepspeed/mixtures.h"

namespace cairn {

struct ZeroContents {
  std::vector<std::pair<Role, StoredArray>> tensors;  // under the names of `param_shapes`
  std::vector<StoredArray> alignment;  // elements of the flat buffers that belong to no parameter
  int stage = 1;
  bool steps_differ = false;                        // between groups; then each parameter has its own tensor
  nlohmann::json state = nlohmann::json::object();  // optimizer_step, loss_scale
  std::vector<std::vector<std::string>> groups;     // names of each parameter group; empty: not known
  std::vector<std::string> doubts;  // contradictions in the files: masters must be compared with weights
};

// `shards` by data parallel rank, all of the model parallel rank `rank` of `ranks`, whose weights have been
// read. `masters_alone`: reads nothing else of the optimizer's state. Errors: Corrupt naming file and tensor:
// sizes that do not add up, shards of another step; NotSupported naming an optimizer's state that is not
// of the parameters' elements.
Result<ZeroContents> ReadZero(RankSlices& ranks, size_t rank, const std::vector<TorchFile>& shards,
                              bool masters_alone);

}  // namespace cairn
