// Megatron-LM's flags were renamed with versions 2 (2020) and 2.5 (2021), and again for recomputation in
// 2022; Megatron-DeepSpeed kept the older ones in addition to its own. DeepSpeed's examples with
// Megatron-LM 1.1.5, which BigScience ran first, have the oldest.
#include "runtime/config/flag_aliases.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/base/parse_number.h"

namespace cairn {
namespace {

constexpr FlagAlias kAliases[] = {
    {"model-parallel-size", "tensor-model-parallel-size", ""},
    {"pipe-parallel-size", "pipeline-model-parallel-size", ""},
    {"batch-size", "micro-batch-size", ""},
    {"gas", "gradient-accumulation-steps", ""},
    {"warmup", "lr-warmup-fraction", ""},
    {"recompute-activations", "recompute-granularity", "selective"},
    {"activations-checkpoint-method", "recompute-method", ""},
    {"activations-checkpoint-num-layers", "recompute-num-layers", ""},
    {"checkpoint-num-layers", "recompute-num-layers", ""},
    {"distribute-checkpointed-activations", "partition-activations", "true"},
    {"distribute-saved-activations", "partition-activations", "true"},
    {"use-distributed-optimizer", "zero-stage", "1"},
    {"zero-reduce-bucket-size", "reduce-bucket-size", ""},
    {"cpu-optimizer", "offload-optimizer", "true"},
    {"optimizer-cpu-offload", "offload-optimizer", "true"},
    {"no-train", "skip-train", "true"},
    {"kill-switch-file", "kill-switch-path", ""},
    {"reset-iteration", "reset-progress", "true"},
    {"norm-epsilon", "layernorm-epsilon", ""},
    {"num-key-value-heads", "num-query-groups", "", "group-query-attention"},
    {"rotary-position-embeddings-theta", "rotary-base", ""},
    {"deepscale-config", "deepspeed-config", ""},
};

// Flags whose values must be translated.
std::string SecondsOf(std::string_view minutes) {
  const auto value = ParseNumber<double>(minutes);
  return value ? fmt::format("{}", *value * 60) : std::string(minutes);  // refused later, by its name
}

std::string OffloadOf(std::string_view device) {
  return device == "cpu" ? "true" : device == "none" ? "false" : std::string(device);
}

std::string TruthOf(std::string_view truth) {
  return truth == "True" ? "true" : truth == "False" ? "false" : std::string(truth);
}

std::string PositionsOf(std::string_view type) {
  return std::string(type == "absolute" ? "learned_absolute" : type == "rotary" ? "rope" : type);
}

struct ValueAlias {
  std::string_view old_name;
  std::string_view name;
  std::string (*value_of)(std::string_view);
};
constexpr ValueAlias kValueAliases[] = {
    {"distributed-timeout-minutes", "distributed-timeout-seconds", SecondsOf},
    {"remote-device", "offload-param", OffloadOf},
    {"position-embedding-type", "position-embedding-type", PositionsOf},  // BigScience's
    {"eval-only", "skip-train", TruthOf},
};

// A flag and, if in the same word, its value after the equals sign.
struct FlagWord {
  std::string name;
  std::string value;  // with the sign
};

FlagWord Split(const std::string& word) {
  const size_t equals = std::min(word.find('='), word.size());
  FlagWord flag{word.substr(2, equals - 2), word.substr(equals)};
  std::ranges::replace(flag.name, '_', '-');
  return flag;
}

bool IsFlag(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

}  // namespace

std::span<const FlagAlias> FlagAliases() { return kAliases; }

std::vector<std::string> InCairnNames(const std::vector<std::string>& words) {
  std::vector<std::string> ours;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!IsFlag(words[i])) {
      ours.push_back(words[i]);
      continue;
    }
    auto [name, value] = Split(words[i]);
    const bool value_follows = value.empty() && i + 1 < words.size() && !IsFlag(words[i + 1]);
    if (const auto* alias = std::ranges::find(kAliases, name, &FlagAlias::old_name);
        alias != std::end(kAliases)) {
      if (!alias->also.empty()) ours.push_back(fmt::format("--{}", alias->also));
      name = alias->name;
      if (!alias->value.empty() && value.empty()) value = fmt::format("={}", alias->value);
    } else if (const auto* other = std::ranges::find(kValueAliases, name, &ValueAlias::old_name);
               other != std::end(kValueAliases)) {
      name = other->name;
      if (value_follows) value = "=" + words[++i];
      if (!value.empty()) value = "=" + other->value_of(std::string_view(value).substr(1));
    } else if (name == "deepspeed" && value_follows) {
      name = "deepspeed-config";  // transformers' flag has the file itself
    }
    ours.push_back("--" + name + value);
  }
  return ours;
}

}  // namespace cairn
