// The modules of a GPT as Megatron's programs hold them: what each program calls them, the canonical modules
// that they are made of, and which box of which parameter a rank's slice of one holds. Readers and writers of
// Megatron-LM, torch_dist and DeepSpeed share it.
//
// How tensor parallelism cuts a module, and whether its rows are a vocabulary, follows only from its
// canonical modules (ckpt/model/canonical_modules.h). Source: megatron-core 0.16.1, models/gpt;
// Megatron-DeepSpeed, megatron/model/gpt_model.py.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/slice.h"
#include "convert/formats/megatron_model/megatron_function.h"
#include "convert/formats/megatron_model/megatron_names.h"

namespace cairn {

struct MegatronModule {
  std::string_view name;                    // of Megatron-LM and Megatron-DeepSpeed
  std::vector<std::string_view> canonical;  // one; or q, k, v; or gate and up, or up only
  // The place in which Transformer Engine's layers register it; equal numbers keep the order of the table.
  int core_order = -1;
  std::string_view core = {};   // its name with Megatron-Core's own layers
  std::string_view fused = {};  // of a norm in the linear module after it: with Transformer Engine's layers
  bool linear = false;          // has an _extra_state in addition to its parameters
  std::string_view older = {};  // its name in Megatron-LM v1 to v2, or in an embedding's head
  std::string_view weight = "weight";  // the end of its weight's name
  bool of_mtp = false;                 // of a prediction layer itself, not of the decoder layer in it

  // All modules of a fused matrix are cut alike.
  const CanonicalModule& cut_as() const { return *FindCanonicalModule(canonical[0]); }
  bool is_qkv() const { return canonical.size() == 3; }
  bool is_gate_up() const { return canonical.size() == 2; }
  bool of_experts() const { return cut_as().of_experts(); }
  // The dimension in which gate and up follow each other.
  int gated_dim() const { return of_experts() ? 1 : 0; }
  bool is_vocabulary() const { return cut_as().is_vocabulary(); }
};

// In the order in which Megatron-LM and Megatron-DeepSpeed register them.
std::span<const MegatronModule> MegatronModules();

enum class MegatronLayer { kDense, kMixture };  // kinds of decoder layers

// What a program, its version and its form of a checkpoint call the modules of a model, and how they lay them
// out.
struct MegatronDialect {
  MegatronProgram program = MegatronProgram::kCore;
  bool bigscience = false;   // their fork of Megatron-DeepSpeed, which trained BLOOM
  bool gate_last = false;    // its GLU: up * act(gate)
  double qkv_version = 3;    // checkpoint_version
  bool half_layers = false;  // a HybridModel's: attention and MLP are separate layers, in turn
  bool local_spec = false;   // Megatron-Core's own layers, not Transformer Engine's
  bool distributed = false;  // torch_dist, where the former take names of the latter, unless it is latent
  bool latent = false;       // multi-head latent attention

  // "mlp.linear_fc1.layer_norm_weight", or with own layers "pre_mlp_layernorm.weight". No linear module comes
  // after a norm in front of a mixture, or of latent attention.
  std::string Name(const MegatronModule& module, MegatronLayer layer, bool bias) const;
  // With own layers the norm before attention is the first module of its layer.
  int Order(const MegatronModule& module) const {
    return local_spec && module.canonical[0] == "input_norm" ? -1 : module.core_order;
  }
};

struct MegatronParameter {
  const MegatronModule* module = nullptr;
  bool bias = false;
};

// The module of a stored weight or bias, whichever program and version it is of:
// "self_attention.linear_qkv.weight". Its module is null if the name has none. With `latent` attention,
// "self_attention.q_layernorm" is the norm of another vector.
MegatronParameter FindMegatronParameter(std::string_view stored, bool latent = false);
// True for the weight of the output layer: "lm_head.weight".
inline bool IsHead(std::string_view stored) {
  const MegatronModule* module = FindMegatronParameter(stored).module;
  return module && module->canonical[0] == "output";
}

// A GPT as Megatron's arguments, or a manifest, describe it.
struct MegatronShape : ModelShape {
  MegatronDialect dialect;

  // The layer that a name's is, if `first` is that of its pipeline stage. Those of multi-token prediction
  // follow the others. Errors: Corrupt for one of these that the arguments do not have.
  Result<int> LayerOf(const MegatronName& name, int first = 0) const;
};

// A box of a parameter inside a slice.
struct SlicePart : BoxMap {
  size_t canonical = 0;  // into the module's
  Dims whole;            // the parameter's shape
};

// The parts of the slice, of shape `slice`, that rank `rank` has; one is empty if the rank has only rows of
// padding. Errors, with `name` of the slice: Corrupt if the shape contradicts the sizes; NotSupported for a
// cut that cannot be read.
Result<std::vector<SlicePart>> PartsOfSlice(std::string_view name, const MegatronParameter& parameter,
                                            const Dims& slice, const MegatronShape& shape,
                                            const Topology& topology, int rank);

}  // namespace cairn
