// The function of a model, apart from the values of its weights: one closed list of everything that changes
// it, in the words of the manifest's `model`.
//
// The same weights are another model under another activation, rotary base or window, and the tensors' names
// and shapes do not show it. Every reader therefore states each of these fields, every writer reads back what
// it would write, and the trainer states its own; SameFunction compares them field by field. A field that one
// side cannot express, and that differs from its default, is refused by name. Settings of a source that no
// reader understands are in `other`, which equals only itself.
//
// Not listed: facts that tensors show (biases, layer counts; tying is both), and those that act only in
// training (dropout).
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

struct FunctionField {
  std::string_view name;      // in `model`
  std::string_view meaning;   // with its values and unit
  std::string_view fallback;  // as JSON, if `model` omits it: the value of the GPT-2 of `cairn train`
};

// All of them. FORMAT.md, "Model".
std::span<const FunctionField> FunctionFields();

// `architecture` in a manifest's `model` that is of no family.
inline constexpr const char* kNoFamily = "megatron";

// The version of this list that a reader of another system's files has stated in `model.function`.
inline constexpr int kFunctionVersion = 1;

// `model` as a value for each field, each function in one spelling: "gelu_new" and "gelu_pytorch_tanh" are
// one activation, a scale of 1/sqrt(head_dim) is the default, and a field without effect (a rotary base
// without rotation) is null.
nlohmann::json FunctionOf(const nlohmann::json& model);

// Errors: NotSupported naming each field in which `held` computes something other than `model`, and the flag
// that ignores differences in `other` only; `holder` is the name of the program: "Megatron-Core".
Status SameFunction(const nlohmann::json& model, const nlohmann::json& held, std::string_view holder);

}  // namespace cairn
