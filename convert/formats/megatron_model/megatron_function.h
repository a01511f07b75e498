// The function of a model (ckpt/model/model.h) in the arguments of Megatron's programs, in both
// directions.
//
// The list is closed: an argument is mapped to a field here or is harmless (megatron_arguments.cc). Any
// other, of a fork or of a later version, counts as changing the function if its value is not None, False, 0
// or empty: it goes into the model's `other`, which every writer and the trainer refuse by name, and `--allow
// args.NAME` removes again. So a real checkpoint can always be inspected and kept, and nothing is released as
// the wrong model.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/model.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

// The programs have different arguments: only Megatron-Core has rotary scaling and windows, only
// Megatron-DeepSpeed ALiBi and the residual after a norm.
enum class MegatronProgram { kCore, kDeepSpeed };
std::string_view NameOf(MegatronProgram program);

// An argparse.Namespace (or dict) as JSON; an enum is its value, of other objects the class.
nlohmann::json MegatronArgumentsOf(const PyValue& args);

// The value of an argument; null if it has none.
inline nlohmann::json Argument(const nlohmann::json& args, const char* name) {
  return args.value(name, nlohmann::json());
}
// True for None, False, 0 and empty values: no value is given.
bool IsUnset(const nlohmann::json& value);

// The fields of the function that `args` states; `architecture` is the family that computes it and has these
// biases and norms, the written family's name first, and empty if none of Hugging Face's does. `model` has
// the sizes and what its tensors are; it is extended. Arguments that are not understood are in its `other`,
// unless `allowed` accepts args.NAME as harmless.
void ReadMegatronFunction(const nlohmann::json& args, const std::function<bool(const std::string&)>& allowed,
                          Model& model);

struct SizeArgument {
  const char* name;
  nlohmann::json ModelValues::*field;
  bool of_experts = false;
};
// All that state one size each in both directions.
std::span<const SizeArgument> SizeArguments();
inline constexpr const char* kSharedExpertSize = "moe_shared_expert_intermediate_size";

// Adds to `args`, which has the sizes, the arguments of `program` for the model's function.
void AddFunctionArguments(const Model& model, MegatronProgram program, nlohmann::json& args);

// Checks that what AddFunctionArguments wrote is the model's function. Returns the modules that `program`
// then makes. Errors: NotSupported naming the fields.
Result<DecoderModules> CheckFunctionArguments(const Model& model, MegatronProgram program,
                                              const nlohmann::json& args);

}  // namespace cairn
