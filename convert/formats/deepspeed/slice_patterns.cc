// Patterns are Python's regular expressions that match from the start of a name. std::regex reads nearly the
// same language; the rest is refused. The kinds of patterns are tried in DeepSpeed's order, and the first
// that matches gives the rule.

#include "convert/formats/deepspeed/slice_patterns.h"

#include <cctype>
#include <string_view>
#include <utility>

namespace cairn {
namespace {

constexpr size_t kMaxPatterns = 4096;
constexpr size_t kMaxPatternBytes = 512;

bool IsAscii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool IsRepetition(char c) { return c == '*' || c == '+' || c == '?'; }

// After a backslash: a class of characters, or a literal character.
bool IsKnownEscape(char c, bool in_brackets) {
  if (c == '\0' || !IsAscii(c) || (in_brackets && std::string_view("[]^-").find(c) != std::string_view::npos))
    return false;
  return c == 'd' || c == 'w' || !std::isalnum(static_cast<unsigned char>(c));
}

// A regular expression of Python's as std::regex reads it. Nothing if it contains syntax that the two read
// differently, or that may make the expression grow.
std::optional<std::string> ToEcmaScript(std::string_view python) {
  std::string pattern;
  bool in_brackets = false;
  for (size_t i = 0; i < python.size(); ++i) {
    const char c = python[i], next = i + 1 < python.size() ? python[i + 1] : '\0';
    if (!IsAscii(c)) return std::nullopt;
    pattern += c;
    if (c == '\\') {
      if (!IsKnownEscape(next, in_brackets)) return std::nullopt;
      pattern += python[++i];
    } else if (in_brackets) {
      if (c == '[') return std::nullopt;
      in_brackets = c != ']';
    } else if (c == '[') {
      in_brackets = true;
      if (next == '^') pattern += python[++i];
      if (python.substr(i + 1).starts_with(']')) {  // a sign here, the end of an empty class in ECMAScript
        pattern += "\\]";
        ++i;
      }
    } else if (c == '{' || (IsRepetition(c) && next == '+') ||
               (c == '(' && next == '?' && !python.substr(i).starts_with("(?:"))) {
      return std::nullopt;
    }
  }
  return in_brackets ? std::nullopt : std::optional(pattern);
}

// In libstdc++'s polynomial mode, so that no pattern takes a time that is exponential in a name.
std::optional<std::regex> Compile(std::string_view python) {
  const auto pattern = python.size() <= kMaxPatternBytes ? ToEcmaScript(python) : std::nullopt;
  if (!pattern) return std::nullopt;
  try {
    return std::regex(*pattern, std::regex::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error&) {
    return std::nullopt;
  }
}

}  // namespace

// In the order in which DeepSpeed looks a parameter up. Those without a rule are refused by name.
const SlicePatterns::Kind SlicePatterns::kKinds[] = {
    {"autotp_unsupported_parameter_patterns", std::nullopt},
    {"affine_map", std::nullopt},
    {"parameter_with_sub_params", std::nullopt},
    {"tp_replicated_parameter_patterns", SliceRule::kReplicated},
    {"parameter_to_average_patterns", SliceRule::kReplicated},  // equal, or --replicas mean
    {"parameter_with_2_sub_params_cat_dim_0", SliceRule::kTwoRows},
    {"parameter_with_row_parallelism_patterns", SliceRule::kColumns},
    {"vocabulary_parameter_patterns", SliceRule::kRows},
};

Status SlicePatterns::Add(const Kind& kind, const PyValue& pattern) {
  const auto text = AsText(&pattern);
  auto regex = text ? Compile(*text) : std::nullopt;
  if (!regex || patterns_.size() >= kMaxPatterns)
    return NotSupported("universal_checkpoint_info: a pattern of {} is not supported: {:.200}", kind.key,
                        text.value_or("it is not a string"));
  patterns_.push_back({kind, *std::move(regex)});
  return OkStatus();
}

Result<SlicePatterns> SlicePatterns::Read(const PyValue* info) {
  SlicePatterns read;
  read.any_ = info && (info->is(PyKind::kDict) || info->is(PyKind::kObject));
  for (const Kind& kind : kKinds) {
    const PyValue* value = read.any_ ? Find(*info, kind.key) : nullptr;
    const PyValue* params = value ? Find(*value, "params") : nullptr;  // of an affine map, by pattern
    if (params && params->is(PyKind::kDict)) {
      for (size_t i = 0; i + 1 < params->items.size(); i += 2)
        CAIRN_RETURN_IF_ERROR(read.Add(kind, *params->items[i]));
      continue;
    }
    for (size_t i = 0; const PyValue* item = ItemOf(value, i); ++i) {
      const PyValue* several = Find(*item, "patterns");  // of a parameter with sub-parameters
      if (!several) CAIRN_RETURN_IF_ERROR(read.Add(kind, *item));
      for (size_t j = 0; const PyValue* one = ItemOf(several, j); ++j)
        CAIRN_RETURN_IF_ERROR(read.Add(kind, *one));
    }
  }
  return read;
}

Result<SliceRule> SlicePatterns::RuleOf(const std::string& name, bool buffer) const {
  for (const Pattern& pattern : patterns_) {
    if (!std::regex_search(name, pattern.regex, std::regex_constants::match_continuous)) continue;
    if (pattern.kind.rule) return *pattern.kind.rule;
    return NotSupported("{} is one of universal_checkpoint_info's {}, which Cairn does not read", name,
                        pattern.kind.key);
  }
  return buffer ? SliceRule::kReplicated : SliceRule::kRows;
}

}  // namespace cairn
