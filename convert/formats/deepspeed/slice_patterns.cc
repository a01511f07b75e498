// Patterns are Python's regular expressions that match from the start of a name. They become POSIX ones, and
// what POSIX lacks is refused. The kinds of patterns are tried in DeepSpeed's order, and the first that
// matches gives the rule. From a rule, Add() makes the shape of the whole and the box of the slice in it
// (two boxes where two parameters lie in one). The first slice of a box is read; others become replicas,
// which are compared later.

#include "convert/formats/deepspeed/slice_patterns.h"

#include <dlfcn.h>

#include <cctype>
#include <optional>
#include <utility>

namespace cairn {
namespace {

constexpr size_t kMaxPatterns = 4096;
constexpr size_t kMaxPatternBytes = 512;

// In the order in which DeepSpeed looks a parameter up. Those without a rule are refused by name.
struct PatternKind {
  const char* key;
  std::optional<SliceRule> rule;
};
constexpr PatternKind kPatternKinds[] = {
    {"autotp_unsupported_parameter_patterns", std::nullopt},
    {"affine_map", std::nullopt},
    {"parameter_with_sub_params", std::nullopt},
    {"tp_replicated_parameter_patterns", SliceRule::kReplicated},
    {"parameter_to_average_patterns", SliceRule::kReplicated},  // equal, or --replicas mean
    {"parameter_with_2_sub_params_cat_dim_0", SliceRule::kTwoRows},
    {"parameter_with_row_parallelism_patterns", SliceRule::kColumns},
    {"vocabulary_parameter_patterns", SliceRule::kRows},
};

// libc's own functions. libonig, which cuts words for tokenizers, has some of the same names whose flags have
// other values; where both are linked, a name alone may mean either.
struct LibcRegex {
  decltype(&::regcomp) compile = &::regcomp;
  decltype(&::regexec) match = &::regexec;
  decltype(&::regfree) release = &::regfree;

  LibcRegex() {
    void* const libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc == nullptr) return;  // linked into the program
    compile = reinterpret_cast<decltype(compile)>(::dlsym(libc, "regcomp"));
    match = reinterpret_cast<decltype(match)>(::dlsym(libc, "regexec"));
    release = reinterpret_cast<decltype(release)>(::dlsym(libc, "regfree"));
  }
};

const LibcRegex& Libc() {
  static const LibcRegex libc;
  return libc;
}

// A regular expression of Python's as a POSIX one, piece by piece. Three things differ that patterns of names
// use: escapes, which POSIX does not have inside of brackets; groups without a number; lazy repetitions, of
// which whether they match is the same.
class PosixPattern {
 public:
  // Nothing where the pattern uses what POSIX does not have, or may grow.
  static std::optional<std::string> Of(std::string_view python) {
    PosixPattern pattern(python);
    while (!pattern.rest_.empty())
      if (!pattern.Step()) return std::nullopt;
    return pattern.posix_ + ")";
  }

 private:
  explicit PosixPattern(std::string_view python) : rest_(python) {}

  static bool IsRepetition(char c) { return c == '*' || c == '+' || c == '?'; }

  char Next() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  bool Step() {
    const bool repeated = std::exchange(repeated_, false);
    if (rest_.starts_with("(?:")) {
      rest_.remove_prefix(3);
      posix_ += '(';
      return true;
    }
    if (rest_.starts_with("(?")) return false;
    const char c = Next();
    if (c == '[') return Brackets();
    if (c == '\\') return Escape("[0-9]", "[A-Za-z0-9_]", true);
    if (c == '{' || static_cast<unsigned char>(c) >= 0x80) return false;
    if (repeated && IsRepetition(c)) return c == '?';  // a lazy one
    repeated_ = IsRepetition(c);
    posix_ += c;
    return true;
  }

  // Behind a backslash. `quoted`: a sign keeps it.
  bool Escape(std::string_view digit, std::string_view word, bool quoted) {
    if (rest_.empty()) return false;
    const char c = Next();
    if (c == 'd' || c == 'w') {
      posix_ += c == 'd' ? digit : word;
      return true;
    }
    if (std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80) return false;
    if (quoted) posix_ += '\\';
    posix_ += c;
    return true;
  }

  // Behind "[": to the "]". Signs that POSIX would take for its own there are refused.
  bool Brackets() {
    posix_ += '[';
    if (rest_.starts_with("^")) posix_ += Next();
    for (bool first = true; !rest_.empty(); first = false) {
      if (!first && rest_.front() == ']') {
        posix_ += Next();
        return true;
      }
      const char c = Next();
      if (c == '[' || static_cast<unsigned char>(c) >= 0x80) return false;
      if (c != '\\') {
        posix_ += c;
        continue;
      }
      const bool own = rest_.starts_with("]") || rest_.starts_with("^") || rest_.starts_with("-") ||
                       rest_.starts_with("[");
      if (own || !Escape("0-9", "A-Za-z0-9_", false)) return false;
    }
    return false;
  }

  std::string_view rest_;
  std::string posix_ = "^(";
  bool repeated_ = false;  // what was last
};

}  // namespace

Status SlicePatterns::Add(const std::string& key, const PyValue& pattern) {
  const auto text = AsText(&pattern);
  const auto posix = text && text->size() <= kMaxPatternBytes ? PosixPattern::Of(*text) : std::nullopt;
  auto regex = std::make_unique<regex_t>();
  if (!posix || patterns_.size() >= kMaxPatterns ||
      Libc().compile(regex.get(), posix->c_str(), REG_EXTENDED | REG_NOSUB) != 0)
    return NotSupported("universal_checkpoint_info: a pattern of {} is not understood: {:.200}", key,
                        text.value_or("it is not a string"));
  patterns_.push_back({key, {regex.release(), [](regex_t* made) {
                               Libc().release(made);
                               delete made;
                             }}});
  return OkStatus();
}

Result<SlicePatterns> SlicePatterns::Read(const PyValue* info) {
  SlicePatterns read;
  read.any_ = info && (info->is(PyKind::kDict) || info->is(PyKind::kObject));
  for (const PatternKind& kind : kPatternKinds) {
    const PyValue* value = read.any_ ? Find(*info, kind.key) : nullptr;
    const PyValue* params = value ? Find(*value, "params") : nullptr;  // of an affine map, by pattern
    if (params && params->is(PyKind::kDict)) {
      for (size_t i = 0; i + 1 < params->items.size(); i += 2)
        CAIRN_RETURN_IF_ERROR(read.Add(kind.key, *params->items[i]));
      continue;
    }
    for (size_t i = 0; const PyValue* item = ItemOf(value, i); ++i) {
      const PyValue* several = Find(*item, "patterns");  // of a parameter with sub-parameters
      if (!several) CAIRN_RETURN_IF_ERROR(read.Add(kind.key, *item));
      for (size_t j = 0; const PyValue* one = ItemOf(several, j); ++j)
        CAIRN_RETURN_IF_ERROR(read.Add(kind.key, *one));
    }
  }
  return read;
}

Result<SliceRule> SlicePatterns::RuleOf(const std::string& name, bool buffer) const {
  for (const Pattern& pattern : patterns_) {
    if (Libc().match(pattern.regex.get(), name.c_str(), 0, nullptr, 0) != 0) continue;
    for (const PatternKind& kind : kPatternKinds) {
      if (kind.key != pattern.key) continue;
      if (kind.rule) return *kind.rule;
      return NotSupported("{} is one of universal_checkpoint_info's {}, which are not read", name, kind.key);
    }
  }
  return buffer ? SliceRule::kReplicated : SliceRule::kRows;
}

Status SliceAssembler::Add(int tp, const std::string& name, Role role, bool buffer,
                           const StoredArray& slice) {
  const Dims shape = slice.tensor_shape();
  const auto ranks = static_cast<uint64_t>(tp_size_), rank = static_cast<uint64_t>(tp);
  SliceRule rule = SliceRule::kReplicated;
  if (ranks > 1 && !patterns_.any())
    return NotSupported(
        "nothing says how {} is cut over {} tensor parallel ranks: its names are not Megatron's, and its "
        "model "
        "states have no universal_checkpoint_info",
        name, ranks);
  if (ranks > 1 && shape.rank() > 0) {
    CAIRN_ASSIGN_OR_RETURN(rule, patterns_.RuleOf(name, buffer));
  }
  const int dim = rule == SliceRule::kColumns ? 1 : 0;
  const bool two = rule == SliceRule::kTwoRows;
  if (rule != SliceRule::kReplicated && (dim >= shape.rank() || (two && shape[0] % 2 != 0)))
    return Corrupt("{} of shape {} is cut along dimension {} by universal_checkpoint_info", name,
                   ToString(shape), dim);
  if (two && slice.transposed) return NotSupported("{} is stored transposed", name);
  Dims whole = shape;
  if (rule != SliceRule::kReplicated) whole[dim] *= ranks;
  CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor,
                         builder_.Tensor({.name = name, .shape = whole}, role, slice.dtype));
  const uint32_t array = builder_.AddArray(slice);
  for (uint64_t half = 0; half < (two ? 2 : 1); ++half) {
    Box in_slice = Box::Whole(shape);
    if (two) in_slice.extent[0] = shape[0] / 2;
    if (two) in_slice.offset[0] = half * in_slice.extent[0];
    Box box = in_slice;
    if (rule != SliceRule::kReplicated) box.offset[dim] = (half * ranks + rank) * in_slice.extent[dim];
    const Box in_array = slice.transposed ? Box::Whole(slice.shape) : in_slice;
    const auto [taken, fresh] = taken_.try_emplace(std::pair(tensor, ToString(box)), array);
    if (fresh) {
      builder_.catalog.parts.push_back({{box, in_array, slice.transposed}, tensor, array});
    } else if (half == 0) {
      builder_.account.Replica(array);
      replicas_.push_back({tensor, array, taken->second});
    }
  }
  return OkStatus();
}

}  // namespace cairn
