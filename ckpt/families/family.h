// A family of models as data: which modules it has, how another system stores them, and what its
// configuration calls them.
//
// One table serves both directions: reading maps stored tensors to canonical parameters, writing lays
// canonical parameters out as stored tensors. The tables are the *.json of this folder;
// docs/adding-a-family.md says how to write one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/model/model.h"

namespace cairn {

// A condition is kAlways, kNever, kMixture (the layer is a mixture of experts), kMtp (it is one of
// multi-token prediction), one of kMixers (it has that token mixer), the name of a field of the manifest's
// `model` that is true or a number, or "!" and such a name.
inline constexpr const char* kAlways = "always";
inline constexpr const char* kNever = "never";
inline constexpr const char* kMixture = "mixture";
inline constexpr const char* kMtp = "mtp";
// Stands for the number of the layer, and of the expert, in a stored name.
inline constexpr const char* kLayerNumber = "{}";
inline constexpr const char* kExpertNumber = "{e}";

// How canonical modules are laid out in one stored weight. Biases are laid out as the rows of their weights.
enum class Packing {
  kStacked,      // stacked along the rows: [Q; K; V], [gate; up]; a single one is stored as it is
  kTransposed,   // the same, stored [in, out] (GPT-2's Conv1D)
  kAlternating,  // stored [in, out], and of the outputs one of each module by turns (GPT-OSS)
  kGrouped,      // for each group of heads the rows of each module: its query heads, one key head, one value
                 // head; [heads, 3, d] if every query head has its own key and value
};

struct Module {
  // Stored: "transformer.h.{}.attn.c_attn", where {} is the layer. With {e} each expert is a tensor of its
  // own; without it they are stored as one, as the canonical parameters are.
  std::string name;
  std::vector<std::string> canonical;  // "attention.query", ...; canonical_modules.h lists them
  std::string bias = kNever;           // condition for a bias
  Packing packing = Packing::kStacked;
  std::string groups = "num_key_value_heads";  // of kGrouped: the size that counts them
  std::string when = kAlways;                  // condition for the module
  std::string weight = kAlways;                // condition for a weight; a LayerNorm may have neither
  // Suffixes of the weight's and the bias's name; {"", "_bias"} if the module is a parameter itself.
  std::vector<std::string> suffixes = {".weight", ".bias"};

  std::string Name(bool of_bias) const { return name + suffixes[of_bias]; }
  bool by_expert() const { return name.find(kExpertNumber) != std::string::npos; }
};

// A field of the manifest's `model` and of the configuration file.
struct Field {
  std::string name;                 // in `model`
  std::vector<std::string> config;  // its key, then older spellings
  // The value if the file omits it. Null: it is required, or follows from others: num_key_value_heads from
  // num_attention_heads, head_dim from both sizes, ffn_hidden_size (four times hidden_size).
  nlohmann::json fallback = nullptr;
  bool nullable = false;  // null in the file means null, not the fallback
};

// A setting that is not supported: such a model would compute something else.
struct Refusal {
  std::string config;   // key
  nlohmann::json only;  // the supported value; the key may also be missing or null
  std::string same_as;  // instead: the key whose value it must equal
};

struct Family {
  std::string name;             // of the manifest's model, and model_type in config.json
  std::string class_name;       // "LlamaForCausalLM"
  std::string base_prefix;      // "model."; missing if a model was saved without its head
  std::vector<Module> modules;  // in the order of the other system's state dict
  // In place of the modules of the same parameters in the memory of transformers 5, and so in state dicts.
  std::vector<Module> in_memory = {};
  std::vector<Module> in_torchtitan = {};  // the same in torchtitan's; their names have no base_prefix
  // Modules of which torchtitan trains one tensor and saves its weight in parts: names of the optimizer's
  // states.
  std::vector<Module> states_in_torchtitan = {};
  // Modules of the layers of multi-token prediction that are copies of canonical modules outside the layers:
  // {"model.layers.{}.embed_tokens": "embedding.word"}. They are compared, and not kept.
  std::map<std::string, std::string> copies = {};
  std::vector<Field> fields;
  std::vector<std::string> buffers;  // globs of stored tensors that are not parameters, and are dropped
  // Globs of stored tensors for which the table has no modules. Files with such keep the names of all.
  std::vector<std::string> beyond = {};
  std::vector<Refusal> refusals;
  std::vector<std::string> harmless = {};  // keys that change nothing, in addition to those of every family
  bool rare = false;  // Megatron's arguments that name no family mean it only if no other one fits
  Model model = {};   // fields that every member has
  nlohmann::json config = nlohmann::json::object();  // of config.json, if the original is not known
  // Rotary position embeddings, in both of transformers' spellings (config_spellings.h); for a part of each
  // head if `model` has a rotary_percent.
  bool rope = false;
  // Further keys under which config.json has them: {"rope_theta": "rotary_emb_base"}.
  std::map<std::string, std::string> rope_also = {};
};

}  // namespace cairn
