#include "tools/archive/policy.h"

#include <toml++/toml.h>

#include <charconv>
#include <functional>
#include <map>

#include "ckpt/file_system.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxPolicyBytes = 1 << 20;
constexpr uint64_t kBundleMin = 512'000'000, kBundleMax = 500'000'000'000;

using Taker = std::function<bool(const toml::node&)>;
using Takers = std::map<std::string_view, Taker>;

template <typename T>
Taker Into(T& out) {
  return [&out](const toml::node& node) {
    const std::optional<T> value = node.value_exact<T>();
    if (value) out = *value;
    return value.has_value();
  };
}

Taker Count(int64_t& out) {
  return [&out](const toml::node& node) {
    const auto value = node.value_exact<int64_t>();
    if (value) out = *value;
    return value && *value > 0;
  };
}

template <typename T>
Taker List(std::vector<T>& out) {
  return [&out](const toml::node& node) {
    if (!node.as_array()) return false;
    for (const toml::node& element : *node.as_array()) {
      const auto value = element.value_exact<T>();
      if (!value) return false;
      out.push_back(*value);
    }
    return true;
  };
}

template <typename T>
Taker Size(T& out) {
  return [&out](const toml::node& node) {
    const auto text = node.value_exact<std::string>();
    const auto size = text ? ParseSize(*text) : node.value<double>();
    if (size) out = static_cast<T>(*size);
    return size && *size > 0;
  };
}

Taker Percent(double& out) {
  return [&out](const toml::node& node) {
    const auto text = node.value_exact<std::string>();
    const auto fraction = text ? ParsePercent(*text) : std::nullopt;
    if (fraction) out = *fraction;
    return fraction.has_value();
  };
}

Status Take(const toml::table& table, const std::string& origin, const Takers& takers) {
  for (const auto& [key, node] : table) {
    const std::string where = fmt::format("{}:{}", origin, node.source().begin.line);
    const auto taker = takers.find(key.str());
    if (taker == takers.end()) return InvalidArgument("{}: unknown key '{}'", where, key.str());
    if (!taker->second(node))
      return InvalidArgument("{}: the value of '{}' has the wrong type or range", where, key.str());
  }
  return OkStatus();
}

Result<KeepClass> TakeClass(const toml::node& node, const std::string& origin) {
  KeepClass keep;
  const auto form = [&keep](const toml::node& value) {
    const auto text = value.value_exact<std::string>();
    if (!text || (*text != Name(Form::kFull) && *text != Name(Form::kWeights))) return false;
    keep.keep = *text == Name(Form::kFull) ? Form::kFull : Form::kWeights;
    return true;
  };
  const std::string where = fmt::format("{}:{}", origin, node.source().begin.line);
  if (!node.as_table()) return InvalidArgument("{}: write [[class]] tables", where);
  CAIRN_RETURN_IF_ERROR(Take(*node.as_table(), origin,
                             {{"keep", form},
                              {"every", Count(keep.every)},
                              {"last", Count(keep.last)},
                              {"tokens", Count(keep.tokens)},
                              {"steps", List(keep.steps)},
                              {"daily", Count(keep.daily)},
                              {"weekly", Count(keep.weekly)},
                              {"monthly", Count(keep.monthly)}}));
  if (keep.every + keep.last + keep.tokens + keep.daily + keep.weekly + keep.monthly == 0 &&
      keep.steps.empty())
    return InvalidArgument(
        "{}: a class that keeps nothing; give it every, last, tokens, steps, daily, weekly or monthly",
        where);
  return keep;
}

Taker Table(const std::string& origin, Status& status, Takers takers) {
  return [&origin, &status, takers = std::move(takers)](const toml::node& node) {
    if (!node.as_table()) return false;
    if (status.ok()) status = Take(*node.as_table(), origin, takers);
    return true;
  };
}

Status TakeAll(const toml::table& root, const std::string& origin, Policy& p) {
  Status inner;
  const auto classes = [&](const toml::node& node) {
    if (!node.as_array()) return false;
    for (const toml::node& element : *node.as_array()) {
      Result<KeepClass> keep = TakeClass(element, origin);
      if (keep.ok()) p.classes.push_back(std::move(keep).value());
      if (!keep.ok() && inner.ok()) inner = keep.status();
    }
    return true;
  };
  CAIRN_RETURN_IF_ERROR(Take(
      root, origin,
      {{"store", Into(p.store)},
       {"runs", List(p.runs)},
       {"trees", List(p.trees)},
       {"purge_days", Count(p.purge_days)},
       {"margin_days",
        [&](const toml::node& node) { return (p.margin_days = node.value<double>().value_or(-1)) >= 0; }},
       {"bandwidth", Size(p.bandwidth)},
       {"pack", Into(p.pack)},
       {"parity", Percent(p.parity)},
       {"bundle", Size(p.bundle)},
       {"bundle_min", Size(p.bundle_min)},
       {"bundle_max", Size(p.bundle_max)},
       {"status", Into(p.status)},
       {"metrics", Into(p.metrics)},
       {"on_failure", Into(p.on_failure)},
       {"class", classes},
       {"quota", Table(origin, inner, {{"bytes", Size(p.quota_bytes)}, {"inodes", Size(p.quota_inodes)}})},
       {"delete", Table(origin, inner,
                        {{"source", Into(p.delete_source)},
                         {"weights_suffice", Into(p.weights_suffice)},
                         {"stored", Into(p.delete_stored)},
                         {"rewrite", Percent(p.rewrite)}})},
       {"verify", Table(origin, inner,
                        {{"sample", Percent(p.verify_sample)}, {"per_night", Size(p.verify_per_night)}})},
       {"recall", Table(origin, inner, {{"stat", Into(p.recall_stat)}, {"recall", Into(p.recall)}})}}));
  return inner;
}

}  // namespace

std::optional<double> ParseSize(std::string_view text) {
  if (text.ends_with("/s")) text.remove_suffix(2);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  std::string_view unit = text.substr(end - text.data());
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  static const std::map<std::string_view, double> kUnits = {
      {"", 1},         {"B", 1},           {"kB", 1e3},           {"KB", 1e3},
      {"MB", 1e6},     {"GB", 1e9},        {"TB", 1e12},          {"PB", 1e15},
      {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  const auto found = kUnits.find(unit);
  if (found == kUnits.end()) return std::nullopt;
  return value * found->second;
}

std::optional<double> ParsePercent(std::string_view text) {
  if (!text.ends_with('%')) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size() - 1, value);
  if (error != std::errc() || end != text.data() + text.size() - 1 || !(value > 0) || value > 100)
    return std::nullopt;
  return value / 100;
}

namespace {

// Sizes that are left out follow from `bundle`.
Status CompleteBundle(Policy& p, const std::string& origin) {
  if (p.bundle == 0) {
    if (p.bundle_min > 0)
      return InvalidArgument("{}: bundle_min means nothing without bundle = \"100GB\"", origin);
    return OkStatus();
  }
  if (p.bundle_min == 0) p.bundle_min = std::min(kBundleMin, p.bundle);
  if (p.bundle_max == 0) p.bundle_max = std::max(kBundleMax, p.bundle);
  if (p.bundle_min > p.bundle || p.bundle > p.bundle_max)
    return InvalidArgument("{}: bundle lies between bundle_min and bundle_max", origin);
  return OkStatus();
}

}  // namespace

Result<Policy> ParsePolicy(std::string_view text, const std::string& origin) {
  Policy policy;
  try {
    const toml::table root = toml::parse(text);
    CAIRN_RETURN_IF_ERROR(TakeAll(root, origin, policy));
  } catch (const toml::parse_error& error) {
    return InvalidArgument("{}:{}: {}", origin, error.source().begin.line, error.description());
  }
  if (policy.store.empty()) return InvalidArgument("{}: store = \"DIR\" is missing", origin);
  if (policy.runs.empty() && policy.trees.empty())
    return InvalidArgument("{}: neither runs = [...] nor trees = [...]; nothing would be archived", origin);
  if (!policy.runs.empty() && policy.classes.empty())
    return InvalidArgument("{}: no [[class]] says which steps of the runs to keep", origin);
  CAIRN_RETURN_IF_ERROR(CompleteBundle(policy, origin));
  if (policy.status.empty()) policy.status = JoinPath(policy.store, "status.json");
  return policy;
}

Result<Policy> ReadPolicy(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(FileSystem::Posix(), path, kMaxPolicyBytes));
  return ParsePolicy(text, path);
}

}  // namespace cairn
