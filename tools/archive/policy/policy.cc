// Rows() is the parser, the help and the error messages in one table: a key, an example, its meaning, and a
// function that takes a value or refuses it. A key without a row is an error that names a similar one,
// because a misspelt key would silently mean another policy. Sizes that are left out follow from `bundle`.
// Relative paths begin at the policy's directory, because a scheduler starts in another one.

#include "tools/archive/policy/policy.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/base/toml_fields.h"
#include "ckpt/io/file_system.h"
#include "tools/archive/policy/directory_pattern.h"
#include "tools/archive/store/claims.h"
#include "tools/archive/tar/tar_parity.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxPolicyBytes = 1 << 20;
constexpr double kMostBytes = 9.2e18;  // of any size: below 2^63
constexpr uint64_t kBundleMin = 512'000'000, kBundleMax = 500'000'000'000;

// Each reads a value of one type; nullopt if it has another type or lies out of range.
std::optional<std::string> Text(const toml::node& node) { return node.value_exact<std::string>(); }
std::optional<bool> Bool(const toml::node& node) { return node.value_exact<bool>(); }

std::optional<int64_t> Count(const toml::node& node) {
  const auto value = node.value_exact<int64_t>();
  return value && *value > 0 ? value : std::nullopt;
}

template <typename T>
std::optional<std::vector<T>> List(const toml::node& node) {
  std::vector<T> values;
  if (!node.as_array()) return std::nullopt;
  for (const toml::node& element : *node.as_array()) {
    const auto value = element.value_exact<T>();
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

std::optional<double> Size(const toml::node& node) {
  const auto text = Text(node);
  const auto size = text ? ParseSize(*text) : node.value<double>();
  return size && *size > 0 && *size < kMostBytes ? size : std::nullopt;
}

std::optional<double> Percent(const toml::node& node) {
  const auto text = Text(node);
  return text ? ParsePercent(*text) : std::nullopt;
}

std::optional<double> Days(const toml::node& node) {
  const auto days = node.value<double>();
  return days && *days >= 0 ? days : std::nullopt;
}

std::optional<Form> StepForm(const toml::node& node) {
  const auto text = Text(node);
  for (const Form form : {Form::kFull, Form::kWeights})
    if (text == Name(form)) return form;
  return std::nullopt;
}

// A label in sidecars and messages; the others that claim members have a space or a colon in theirs.
std::optional<std::string> Tag(const toml::node& node) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  const auto text = Text(node);
  const bool fits =
      text && !text->empty() && *text != kUnknownClaim && text->find_first_not_of(kPlain) == text->npos;
  return fits ? text : std::nullopt;
}

// The destination of a key's value.
struct Target {
  Policy& policy;
  KeepClass& keep;  // of a [[class]]
};

template <typename T, typename Value>
bool Set(T& out, const std::optional<Value>& value) {
  if (value) out = static_cast<T>(*value);
  return value.has_value();
}

struct Row {
  PolicyKey key;
  bool (*take)(const toml::node&, const Target&);  // false: refused
};

// The only list of keys.
const std::vector<Row>& Rows() {
  using N = const toml::node&;
  using T = const Target&;
  static const std::vector<Row> kRows = {
      {{"", "store", "\"/tape/me/store\"", "directory that keeps the tar files; required"},
       [](N n, T t) { return Set(t.policy.store, Text(n)); }},
      {{"", "runs", "[\"runs/*\"]", "run directories; globs"},
       [](N n, T t) { return Set(t.policy.runs, List<std::string>(n)); }},
      {{"", "trees", "[\"tokenizer\"]", "other directories, stored as they are; globs"},
       [](N n, T t) { return Set(t.policy.trees, List<std::string>(n)); }},
      {{"", "tag", "\"weekly\"",
        "the policy's name in the store, one for each policy: no other policy prunes what it claims; "
        "default: the path of its file"},
       [](N n, T t) { return Set(t.policy.tag, Tag(n)); }},
      {{"", "purge_days", "30",
        "scratch deletes files that were not accessed for this many days (default 30)"},
       [](N n, T t) { return Set(t.policy.purge_days, Count(n)); }},
      {{"", "purge_by", "\"mtime\"",
        "which time the purge checks: atime (of the last read) or mtime (of the last write; restored files "
        "have that of the original) (default atime)"},
       [](N n, T t) {
         const auto time = Text(n);
         t.policy.purge_by_mtime = time == "mtime";
         return time == "atime" || time == "mtime";
       }},
      {{"", "margin_days", "5", "a copy must be proven this many days before the purge (default 5)"},
       [](N n, T t) { return Set(t.policy.margin_days, Days(n)); }},
      {{"", "bandwidth", "\"400MB/s\"", "of archiving, proof included; default: as measured by the last run"},
       [](N n, T t) { return Set(t.policy.bandwidth, Size(n)); }},
      {{"", "pack", "true", "store shards in fewer bytes (default false)"},
       [](N n, T t) { return Set(t.policy.pack, Bool(n)); }},
      {{"", "parity", "\"3%\"", "blocks that repair this much damage; default: none"},
       [](N n, T t) { return Set(t.policy.parity, Percent(n)); }},
      {{"", "bundle", "\"100GB\"", "put smaller members together once they add up to this; default: never"},
       [](N n, T t) { return Set(t.policy.bundle.target, Size(n)); }},
      {{"", "bundle_min", "\"512MB\"", "below it, full copies and weights share a bundle (default 512MB)"},
       [](N n, T t) { return Set(t.policy.bundle.least, Size(n)); }},
      {{"", "bundle_max", "\"500GB\"",
        "largest file: the rest goes into another one (default 500GB with bundle, else no limit)"},
       [](N n, T t) { return Set(t.policy.bundle.most, Size(n)); }},
      {{"", "status", "\"archive.json\"", "the last run, for monitoring (default STORE/status.json)"},
       [](N n, T t) { return Set(t.policy.status, Text(n)); }},
      {{"", "metrics", "\"cairn.prom\"", "the same as Prometheus text; default: none"},
       [](N n, T t) { return Set(t.policy.metrics, Text(n)); }},
      {{"", "on_failure", "\"mail -s cairn me < $CAIRN_STATUS\"",
        "command that runs if anything failed; $CAIRN_FAILURE is the first line"},
       [](N n, T t) { return Set(t.policy.on_failure, Text(n)); }},
      {{"class", "keep", "\"full\" or \"weights-fp16\"", "in which form (default full)"},
       [](N n, T t) { return Set(t.keep.keep, StepForm(n)); }},
      {{"class", "every", "5000", "steps that it divides"},
       [](N n, T t) { return Set(t.keep.every, Count(n)); }},
      {{"class", "last", "2", "this many of the newest steps"},
       [](N n, T t) { return Set(t.keep.last, Count(n)); }},
      {{"class", "tokens", "100000000000", "the first step at or after each multiple of consumed tokens"},
       [](N n, T t) { return Set(t.keep.tokens, Count(n)); }},
      {{"class", "steps", "[143000]", "by number"},
       [](N n, T t) { return Set(t.keep.steps, List<int64_t>(n)); }},
      {{"class", "tags", "[\"best\", \"release-*\"]", "with such a tag (cairn tag); globs"},
       [](N n, T t) { return Set(t.keep.tags, List<std::string>(n)); }},
      {{"class", "daily", "7", "the newest step of each day, for this many of the last days that have one"},
       [](N n, T t) { return Set(t.keep.daily, Count(n)); }},
      {{"class", "weekly", "4", "the same for weeks"}, [](N n, T t) { return Set(t.keep.weekly, Count(n)); }},
      {{"class", "monthly", "12", "the same for months"},
       [](N n, T t) { return Set(t.keep.monthly, Count(n)); }},
      {{"quota", "bytes", "\"200TB\"", "limit of the store's directory; a member beyond it is not stored"},
       [](N n, T t) { return Set(t.policy.quota_bytes, Size(n)); }},
      {{"quota", "inodes", "100000", "files and directories in it"},
       [](N n, T t) { return Set(t.policy.quota_inodes, Size(n)); }},
      {{"delete", "source", "true",
        "remove a step once every form that a class keeps was proven again; never the newest (default "
        "false)"},
       [](N n, T t) { return Set(t.policy.delete_source, Bool(n)); }},
      {{"delete", "weights_suffice", "true", "also if classes keep only its weights (default false)"},
       [](N n, T t) { return Set(t.policy.weights_suffice, Bool(n)); }},
      {{"delete", "stored", "true",
        "archive run also prunes: members that no class keeps and nobody else claims (default false)"},
       [](N n, T t) { return Set(t.policy.delete_stored, Bool(n)); }},
      {{"verify", "sample", "\"2%\"",
        "archive verify --policy: this share of the store per night, those read back longest ago first"},
       [](N n, T t) { return Set(t.policy.verify_sample, Percent(n)); }},
      {{"verify", "per_night", "\"200GB\"", "the same as a size"},
       [](N n, T t) { return Set(t.policy.verify_per_night, Size(n)); }},
      {{"recall", "stat", "\"hsm_pos {path}\"",
        "command that prints a file's place on tape, by which files are sorted"},
       [](N n, T t) { return Set(t.policy.recall.stat, Text(n)); }},
      {{"recall", "recall", "\"dmget {paths}\"", "command that brings files back from tape"},
       [](N n, T t) { return Set(t.policy.recall.recall, Text(n)); }},
  };
  return kRows;
}

constexpr std::string_view kTables[] = {"class", "quota", "delete", "verify", "recall"};

Status UnknownKey(const TomlField& field, std::string_view table) {
  std::vector<std::string> names;
  for (const Row& row : Rows())
    if (row.key.table == table) names.emplace_back(row.key.name);
  if (table.empty()) names.insert(names.end(), std::begin(kTables), std::end(kTables));
  return UnknownTomlKey(field, names, "cairn archive plan --help lists all keys");
}

// Takes one table of the file: its own keys, those of [quota] and so on.
Status Take(const toml::node& node, std::string_view name, const std::string& origin, const Target& target) {
  const std::string where = TomlPlace(origin, node), shown = name == "class" ? "[class]" : std::string(name);
  if (!node.as_table()) return InvalidArgument("{}: write a [{}] table", where, shown);
  if (node.as_table()->empty() && !name.empty())
    return InvalidArgument("{}: [{}] is empty; give it a key or leave it out", where, shown);
  return TakeTomlTable(*node.as_table(), origin, [&](const TomlField& field) -> Status {
    if (name.empty() && std::ranges::find(kTables, field.key) != std::end(kTables)) return OkStatus();
    const auto row = std::ranges::find_if(
        Rows(), [&](const Row& r) { return r.key.table == name && r.key.name == field.key; });
    if (row == Rows().end()) return UnknownKey(field, name);
    if (row->take(field.value, target)) return OkStatus();
    return InvalidArgument("{}: the value of '{}' has the wrong type or range; write {} = {}", field.where,
                           field.key, field.key, row->key.value);
  });
}

Status TakeClass(const toml::node& node, const std::string& origin, Policy& policy) {
  KeepClass keep;
  CAIRN_RETURN_IF_ERROR(Take(node, "class", origin, {policy, keep}));
  if (keep.every + keep.last + keep.tokens + keep.daily + keep.weekly + keep.monthly == 0 &&
      keep.steps.empty() && keep.tags.empty())
    return InvalidArgument(
        "{}: this class keeps nothing; give it every, last, tokens, steps, tags, daily, weekly or monthly",
        TomlPlace(origin, node));
  policy.classes.push_back(std::move(keep));
  return OkStatus();
}

Status TakeAll(const toml::table& root, const std::string& origin, Policy& policy) {
  KeepClass none;
  CAIRN_RETURN_IF_ERROR(Take(root, "", origin, {policy, none}));
  for (const std::string_view name : kTables) {
    const toml::node* node = root.get(name);
    if (node != nullptr && name != "class") CAIRN_RETURN_IF_ERROR(Take(*node, name, origin, {policy, none}));
  }
  const toml::node* classes = root.get("class");
  if (classes == nullptr) return OkStatus();
  if (!classes->as_array()) return InvalidArgument("{}: write [[class]] tables", TomlPlace(origin, *classes));
  for (const toml::node& element : *classes->as_array())
    CAIRN_RETURN_IF_ERROR(TakeClass(element, origin, policy));
  return OkStatus();
}

// Makes a path of the policy independent of the working directory.
Status Resolve(const std::string& origin, const std::string& directory, bool pattern, std::string& path) {
  const auto below = [&](const std::string& base, const std::string& rest) {
    return JoinPath(pattern ? LiteralPattern(base) : base, rest);
  };
  if (path.starts_with('~')) {
    const char* home = std::getenv("HOME");
    if (path.size() > 1 && path[1] != '/')
      return InvalidArgument("{}: '{}' is in another user's home; write the path in full", origin, path);
    if (home == nullptr || *home != '/')
      return InvalidArgument("{}: '{}' means $HOME, which is not set; write the path in full", origin, path);
    path = path.size() <= 2 ? (pattern ? LiteralPattern(home) : home) : below(home, path.substr(2));
  } else if (!directory.empty() && !path.empty() && !path.starts_with('/')) {
    path = below(directory, path);
  }
  return OkStatus();
}

Status ResolveAll(const std::string& origin, const std::string& directory, Policy& p) {
  for (std::string* path : {&p.store, &p.status, &p.metrics})
    CAIRN_RETURN_IF_ERROR(Resolve(origin, directory, /*pattern=*/false, *path));
  for (std::vector<std::string>* patterns : {&p.runs, &p.trees})
    for (std::string& pattern : *patterns) {
      if (pattern.empty()) return InvalidArgument("{}: an empty path", origin);
      CAIRN_RETURN_IF_ERROR(Resolve(origin, directory, /*pattern=*/true, pattern));
    }
  return OkStatus();
}

// Sizes that are left out follow from `bundle`.
Status CompleteBundle(Policy& p, const std::string& origin) {
  auto& [least, target, most] = p.bundle;
  if (target == 0) {
    if (least > 0) return InvalidArgument("{}: bundle_min has no effect without bundle = \"100GB\"", origin);
    return OkStatus();
  }
  if (least == 0) least = std::min(kBundleMin, target);
  if (most == 0) most = std::max(kBundleMax, target);
  if (least > target || target > most)
    return InvalidArgument("{}: bundle must be between bundle_min and bundle_max", origin);
  return OkStatus();
}

}  // namespace

std::vector<std::string> Policy::labels() const {
  std::vector<std::string> labels;
  if (!tag.empty()) labels.push_back(tag);
  if (!path.empty()) labels.push_back(fmt::format("{}{}", kPolicyClaim, path));
  return labels;
}

bool Policy::Claims(std::string_view claim) const {
  const std::vector<std::string> own = labels();
  return std::ranges::find(own, claim) != own.end();
}

const std::vector<PolicyKey>& PolicyKeys() {
  static const std::vector<PolicyKey> kKeys = [] {
    std::vector<PolicyKey> keys;
    for (const Row& row : Rows()) keys.push_back(row.key);
    return keys;
  }();
  return kKeys;
}

std::string PolicyKeysText() {
  std::string text, table;
  for (const PolicyKey& key : PolicyKeys()) {
    if (key.table != table) {
      table = key.table;
      text += table == "class" ? "  [[class]]\n" : fmt::format("  [{}]\n", table);
    }
    text += fmt::format("  {:<16}{}\n", key.name, key.meaning);
    text += fmt::format("  {:<16}  {} = {}\n", "", key.name, key.value);
  }
  return text;
}

std::optional<double> ParseSize(std::string_view text) {
  if (text.ends_with("/s")) text.remove_suffix(2);
  const auto value = TakeNumber<double>(text);
  if (!value || *value < 0) return std::nullopt;
  while (text.starts_with(' ')) text.remove_prefix(1);
  static const std::map<std::string_view, double> kUnits = {
      {"", 1},         {"B", 1},           {"kB", 1e3},           {"KB", 1e3},
      {"MB", 1e6},     {"GB", 1e9},        {"TB", 1e12},          {"PB", 1e15},
      {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  const auto found = kUnits.find(text);
  if (found == kUnits.end()) return std::nullopt;
  return *value * found->second;
}

std::optional<double> ParsePercent(std::string_view text) {
  if (!text.ends_with('%')) return std::nullopt;
  text.remove_suffix(1);
  const auto value = ParseNumber<double>(text);
  if (!value || !(*value > 0) || *value > 100) return std::nullopt;
  return *value / 100;
}

Result<Policy> ParsePolicy(std::string_view text, const std::string& origin, const std::string& directory) {
  Policy policy;
  CAIRN_ASSIGN_OR_RETURN(const toml::table root, ParseToml(text, origin));
  CAIRN_RETURN_IF_ERROR(TakeAll(root, origin, policy));
  if (policy.store.empty()) return InvalidArgument("{}: store = \"DIR\" is missing", origin);
  if (policy.runs.empty() && policy.trees.empty())
    return InvalidArgument("{}: neither runs = [...] nor trees = [...]; nothing would be archived", origin);
  if (!policy.runs.empty() && policy.classes.empty())
    return InvalidArgument("{}: it has no [[class]], which says which steps of the runs to keep", origin);
  CAIRN_RETURN_IF_ERROR(ShapeFor(policy.parity).status().WithContext(origin));
  CAIRN_RETURN_IF_ERROR(CompleteBundle(policy, origin));
  CAIRN_RETURN_IF_ERROR(ResolveAll(origin, directory, policy));
  if (policy.status.empty()) policy.status = Store(FileSystem::Posix(), policy.store).Path(kStatusName);
  return policy;
}

Result<Policy> ReadPolicy(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(FileSystem::Posix(), path, kMaxPolicyBytes));
  const std::string canonical = CanonicalPath(path);
  CAIRN_ASSIGN_OR_RETURN(Policy policy, ParsePolicy(text, path, ParentDir(canonical)));
  policy.path = canonical;
  return policy;
}

}  // namespace cairn
