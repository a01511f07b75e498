// The experts of a checkpoint, counted by the names and shapes of its tensors and by its configuration.
//
// In a step of Cairn and in a model of a known family all experts of a layer are one tensor. Under names of
// its own, a checkpoint has one tensor of all of them ("mlp.experts.gate_up_proj"), or a tensor for each
// ("mlp.experts.3.up_proj.weight").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/model/model.h"
#include "ckpt/model/tensor.h"

namespace cairn {

// The experts of one layer.
struct Mixture {
  std::string name;                     // the module that has them: "layers.3.mlp"
  uint64_t experts = 0;                 // one more than the highest number
  std::optional<uint32_t> router = {};  // its weight; rows are experts
};

// A tensor of one expert or of all.
struct ExpertTensor {
  uint32_t mixture = 0;  // into ExpertCensus::mixtures
  std::string part;      // the rest of the name: "up.weight"
  uint64_t first = 0;    // expert
  uint64_t count = 0;    // experts along dimension 0
};

struct ExpertCensus {
  std::vector<Mixture> mixtures;
  std::map<uint32_t, ExpertTensor> tensors;  // by number in the catalog
  std::vector<std::string> lost;             // a sentence for each contradiction: an expert is missing
  std::vector<std::string> notes;            // what is missing in files that are good all the same
};

// Values are not read. `model` is the manifest's.
ExpertCensus TakeCensus(const std::vector<TensorEntry>& tensors, const Model& model);

// The tensors of a checkpoint under the names that its files have, and its config.json, if it has one. No
// family is asked, so they are known of a model that cannot be read, too.
struct StoredNames {
  std::vector<TensorEntry> tensors;
  Model model;  // its "config"
};

// For a checkpoint that cannot be read because of `why`: Corrupt naming the experts that it lacks, which are
// lost whatever else is the matter; `why` if it lacks none.
Status WhyNotRead(const std::string& checkpoint, const Status& why, const StoredNames& names,
                  const std::vector<std::string>& allow);

// Makes notes of `lost` if one of the globs fits "experts": a file may be one of several.
void AllowLost(const std::vector<std::string>& allow, ExpertCensus& census);

// "12 experts in each of 3 layers"; empty if there are none.
std::string ToString(const std::vector<Mixture>& mixtures);

// The number under the first of `keys` that the model, or the config.json that it was read from, has as a
// positive number; `fallback` if none is.
double StatedNumber(const Model& model, const std::vector<const char*>& keys, double fallback);

}  // namespace cairn
