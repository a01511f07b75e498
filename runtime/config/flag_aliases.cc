// Megatron-LM's flags were renamed with versions 2 (2020) and 2.5 (2021), and again for recomputation in
// 2022; Megatron-DeepSpeed kept the older ones in addition to its own. DeepSpeed's examples with
// Megatron-LM 1.1.5, which BigScience ran first, have the oldest.
#include "runtime/config/flag_aliases.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/base/parse_number.h"
#include "ckpt/base/split_text.h"
#include "config_texts.h"

namespace cairn {
namespace {

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

std::span<const FlagAlias> FlagAliases() {
  static const std::vector<FlagAlias> kAliases = [] {
    std::vector<FlagAlias> aliases;
    for (const std::string_view row : TextRows(kAliasesText)) {
      const std::vector<std::string_view> words = SplitText(row, ' ');
      const size_t equals = std::min(words[1].find('='), words[1].size());
      aliases.push_back(
          {words[0], words[1].substr(0, equals), words[1].substr(equals), words.size() > 2 ? words[2] : ""});
    }
    return aliases;
  }();
  return kAliases;
}

std::vector<std::string> InCairnNames(const std::vector<std::string>& words) {
  std::vector<std::string> ours;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!IsFlag(words[i])) {
      ours.push_back(words[i]);
      continue;
    }
    auto [name, value] = Split(words[i]);
    const bool value_follows = value.empty() && i + 1 < words.size() && !IsFlag(words[i + 1]);
    if (const auto alias = std::ranges::find(FlagAliases(), name, &FlagAlias::old_name);
        alias != FlagAliases().end()) {
      if (!alias->also.empty()) ours.push_back(fmt::format("--{}", alias->also));
      name = alias->name;
      if (value.empty()) value = alias->value;
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
