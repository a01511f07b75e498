// Megatron's GPT: what its modules are called in each of its forks, and which box of which canonical
// parameter a rank's slice of one is.
//
// Names and cuts are data. Other code verifies the result: the slices must cover every parameter once
// (StoredSource), and masters must round to weights (master_proof.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/model/model.h"
#include "convert/foreign/open_options.h"
#include "convert/foreign/stored_builder.h"
#include "convert/formats/megatron_model/megatron_modules.h"

namespace cairn {

struct MegatronArgs {
  Model model;
  MegatronShape shape;
};
// The vocabulary is padded if no argument has its true size. `args` is the argparse.Namespace (or dict) in a
// checkpoint; `shown` has sizes by argument that its tensors show, for those that `args` lacks
// (megatron_sizes.h). Errors: NotFound naming a missing argument; InvalidArgument if they contradict each
// other; NotSupported. Arguments that are not understood may be allowed
// (convert/formats/megatron_model/megatron_function.h): args.NAME.
Result<MegatronArgs> ReadMegatronArgs(const PyValue& args, double checkpoint_version, bool tied,
                                      ReaderOptions& options,
                                      const std::map<std::string, uint64_t>& shown = {});

// Puts the model, state, step and topology that a checkpoint's top level describes into `manifest`, without
// ZeRO. A checkpoint without args is of the model of `options.config`, and its topology is unknown. Errors:
// those of ReadMegatronArgs and ReadConfigGiven; NotSupported without args and config.
Result<MegatronShape> ReadMegatronTraining(const PyValue& root, double checkpoint_version,
                                           ReaderOptions& options, Manifest& manifest);

// One rank's slice of one stored tensor, or a box of that.
struct MegatronSlice {
  std::string name;  // of the module and weight or bias, without the layer: "mlp.dense_h_to_4h.weight"
  int layer = kBeforeLayers;
  int tp = 0;
  Role role = Role::kWeight;
  StoredArray tensor;
  Dims shape;  // of the slice
  Box box;     // of the slice: the part that `tensor` holds
};

// Those of each expert in `slice`, a whole tensor of `place` of rank `ep` of `ranks`. Errors: Corrupt if its
// shape is not that of such.
Result<std::vector<MegatronSlice>> SlicesOfExperts(const MegatronSlice& slice, const MegatronExpert& place,
                                                   const MegatronShape& shape, int ep, int ranks);

// The error for a tensor that Megatron's GPT does not have.
Status HasNoPlace(const std::string& name);
// The error for an optimizer's state that is one number for a whole parameter.
Status NumberHasNoPlace(const std::string& name, Role role);

// Puts the slices of all ranks together.
class MegatronAssembler {
 public:
  MegatronAssembler(const MegatronShape& shape, int tp_size, StoredBuilder& builder)
      : shape_(shape), topology_{.tp = tp_size}, builder_(builder) {}

  // Errors: NotSupported naming a tensor that Megatron's GPT does not have; Corrupt if its shape contradicts
  // the arguments.
  Status Add(const MegatronSlice& slice);

 private:
  Status AddBox(const MegatronSlice& slice, const MegatronParameter& parameter, const SlicePart& part,
                uint32_t array, bool first);

  const MegatronShape& shape_;
  const Topology topology_;
  StoredBuilder& builder_;
};

}  // namespace cairn
