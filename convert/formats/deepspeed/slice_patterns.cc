// Patterns are Python's regular expressions that match from the start of a name. std::regex reads nearly the
// same language; the rest is refused. The kinds of patterns are tried in DeepSpeed's order, and the first
// that matches gives the rule.

#include "convert/formats/deepspeed/slice_patterns.h"

#include <algorithm>
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

// The box at [offset, strides] of as_strided() in a row-major tensor of `shape`; nothing if it is not one.
std::optional<Box> BoxAt(const PyValue* place, const Dims& extent, const Dims& shape) {
  const auto offset = AsInt(ItemOf(place, 0));
  const auto strides = AsDims(ItemOf(place, 1));
  if (!offset || *offset < 0 || !strides || strides->rank() != shape.rank() || extent.rank() != shape.rank())
    return std::nullopt;
  Box box = Box::Whole(extent);
  uint64_t stride = 1, rest = static_cast<uint64_t>(*offset);
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    if (extent[dim] > 1 && (*strides)[dim] != stride) return std::nullopt;
    if (dim == 0 ? rest >= std::max<uint64_t>(shape[0], 1) : shape[dim] == 0) return std::nullopt;
    box.offset[dim] = dim == 0 ? rest : rest % shape[dim];
    if (dim > 0) rest /= shape[dim];
    if (extent[dim] > shape[dim] - box.offset[dim]) return std::nullopt;
    stride *= shape[dim];
  }
  return rest == box.offset[0] ? std::optional(box) : std::nullopt;
}

}  // namespace

// In the order in which DeepSpeed looks a parameter up. Those without a rule are refused by name.
const SlicePatterns::Kind SlicePatterns::kKinds[] = {
    {"autotp_unsupported_parameter_patterns", std::nullopt},
    {"affine_map", SliceRule::kMapped},
    {"parameter_with_sub_params", std::nullopt},
    {"tp_replicated_parameter_patterns", SliceRule::kReplicated},
    {"parameter_to_average_patterns", SliceRule::kReplicated},  // equal, or --replicas mean
    {"parameter_with_2_sub_params_cat_dim_0", SliceRule::kTwoRows},
    {"parameter_with_row_parallelism_patterns", SliceRule::kColumns},
    {"vocabulary_parameter_patterns", SliceRule::kRows},
};

Status SlicePatterns::Add(const Kind& kind, const PyValue& pattern, const PyValue* map) {
  const auto text = AsText(&pattern);
  auto regex = text ? Compile(*text) : std::nullopt;
  if (!regex || patterns_.size() >= kMaxPatterns)
    return NotSupported("universal_checkpoint_info: a pattern of {} is not supported: {:.200}", kind.key,
                        text.value_or("it is not a string"));
  patterns_.push_back({kind, *std::move(regex), map});
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
        CAIRN_RETURN_IF_ERROR(read.Add(kind, *params->items[i], params->items[i + 1]));
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

Result<SliceLayout> LayoutInMap(const PyValue& map, int rank, const Dims& slice) {
  const auto whole = AsDims(Find(map, "logical_shape"));
  const PyValue* ranks = Find(map, "ranks");
  const PyValue* held = ranks ? EntryOf(ranks, rank) : nullptr;
  const PyValue* pieces = held ? Find(*held, "pieces") : nullptr;
  const auto shape = held ? AsDims(Find(*held, "shard_shape")) : std::nullopt;
  if (!whole || !shape || !pieces || !(*shape == slice))
    return Corrupt("its affine map does not describe rank {}'s slice of shape {}", rank, ToString(slice));
  SliceLayout layout{*whole, {}};
  uint64_t elements = 0;
  for (size_t i = 0; const PyValue* piece = ItemOf(pieces, i); ++i) {
    const auto extent = AsDims(Find(*piece, "shape"));
    if (const double scale = AsNumber(Find(*piece, "scale")).value_or(1); scale != 1)
      return NotSupported("its affine map scales the slice by {}", scale);
    const auto in_whole = extent ? BoxAt(Find(*piece, "source"), *extent, *whole) : std::nullopt;
    const auto in_slice = extent ? BoxAt(Find(*piece, "dest"), *extent, *shape) : std::nullopt;
    if (!in_whole || !in_slice) return NotSupported("a piece of its affine map is not a box");
    elements += extent->Volume();
    layout.parts.push_back({*in_whole, *in_slice});
  }
  if (elements != slice.Volume())
    return Corrupt("the pieces of its affine map have {} of {} elements", elements, slice.Volume());
  return layout;
}

Result<SlicePatterns::Found> SlicePatterns::RuleOf(const std::string& name, bool buffer) const {
  for (const Pattern& pattern : patterns_) {
    if (!std::regex_search(name, pattern.regex, std::regex_constants::match_continuous)) continue;
    if (pattern.kind.rule) return Found{*pattern.kind.rule, pattern.map};
    return NotSupported("{} is one of universal_checkpoint_info's {}, which Cairn does not read", name,
                        pattern.kind.key);
  }
  return Found{buffer ? SliceRule::kReplicated : SliceRule::kRows};
}

}  // namespace cairn
