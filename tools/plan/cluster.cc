// A file starts from a built-in cluster, or from nothing, and each key replaces a field; then the whole is
// checked for missing fields. It never keeps the base's measured runs, even if it changes nothing, because
// other nodes are another cluster.

#include "tools/plan/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <variant>
#include <vector>

#include "ckpt/base/toml_fields.h"

namespace cairn {
namespace {

// GPUs after NVIDIA's data sheets (SXM parts, dense rates). Nodes of V100 and A100-40 have four cards of
// 100 Gb/s, as at Jean Zay; those of A100-80 eight of 200 Gb/s, of H100 and H200 eight of 400 Gb/s.
constexpr double kOldNic = 50;
constexpr double kDgxNic = 200;
constexpr double kNewNic = 400;
const Cluster kBuiltIn[] = {
    {"v100-16", 4, 16, 125, 15.7, false, 80, 900, 150, kOldNic, 12},
    {"v100-32", 4, 32, 125, 15.7, false, 80, 900, 150, kOldNic, 12},
    {"a100-40", 8, 40, 312, 19.5, true, 108, 1555, 300, kOldNic, 25},
    {"a100-80", 8, 80, 312, 19.5, true, 108, 2039, 300, kDgxNic, 25},
    {"h100", 8, 80, 989, 67, true, 132, 3350, 450, kNewNic, 50, false, 0, true},
    {"h200", 8, 141, 989, 67, true, 132, 4800, 450, kNewNic, 50, false, 0, true},
    {"jean-zay", 8, 80, 312, 19.5, true, 108, 2039, 300, kOldNic, 25, false, 0, false, "jean-zay"},
    {"selene", 8, 80, 312, 19.5, true, 108, 2039, 300, kDgxNic, 25, false, 0, false, "selene"},
    {"nvidia-h100", 8, 80, 989, 67, true, 132, 3350, 450, kNewNic, 50, false, 0, true, "nvidia-h100"},
};

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Cluster& cluster : kBuiltIn) names.push_back(cluster.name);
  return names;
}

using Field = std::variant<double Cluster::*, int Cluster::*, bool Cluster::*>;
constexpr std::pair<std::string_view, Field> kFields[] = {{"memory-gb", &Cluster::memory_gb},
                                                          {"half-tflops", &Cluster::half_tflops},
                                                          {"single-tflops", &Cluster::single_tflops},
                                                          {"hbm-gbps", &Cluster::hbm_gbps},
                                                          {"link-gbps", &Cluster::link_gbps},
                                                          {"nic-gbps", &Cluster::nic_gbps},
                                                          {"pcie-gbps", &Cluster::pcie_gbps},
                                                          {"gpus-per-node", &Cluster::gpus_per_node},
                                                          {"sms", &Cluster::sms},
                                                          {"cores", &Cluster::cores},
                                                          {"bf16", &Cluster::has_bf16},
                                                          {"fp8", &Cluster::has_fp8},
                                                          {"cpu", &Cluster::cpu}};

Status Take(const std::string& where, const toml::node& node, bool& flag) {
  if (!node.is_boolean()) return InvalidArgument("{}: expected true or false", where);
  flag = *node.value<bool>();
  return OkStatus();
}

Status Take(const std::string& where, const toml::node& node, auto& number) {
  using Number = std::remove_reference_t<decltype(number)>;
  const auto value = node.value<double>();
  if (!value || !(*value > 0) || *value > 1e9) return InvalidArgument("{}: expected a number above 0", where);
  if (std::is_integral_v<Number> && *value != std::floor(*value))
    return InvalidArgument("{}: expected a whole number", where);
  number = static_cast<Number>(*value);
  return OkStatus();
}

Status TakeKey(const TomlField& key, Cluster& cluster) {
  const std::string where = fmt::format("{}: {}", key.where, key.name);
  if (key.name == "base") {
    if (BuiltInCluster(key.value.value_or(std::string()))) return OkStatus();  // taken before all others
    return InvalidArgument("{}: base must be one of {}", where, fmt::join(Names(), ", "));
  }
  if (key.name == "name") {
    cluster.name = key.value.value_or(cluster.name);
    return OkStatus();
  }
  std::vector<std::string> known = {"base", "name"};
  for (const auto& [name, field] : kFields) {
    if (name == key.name)
      return std::visit([&](auto member) { return Take(where, key.value, cluster.*member); }, field);
    known.emplace_back(name);
  }
  return UnknownTomlKey(key, known, "see cairn plan --help");
}

Result<Cluster> FromTable(const std::string& path, const toml::table& table) {
  Cluster cluster;
  if (const Cluster* base = BuiltInCluster(table["base"].value_or(std::string()))) cluster = *base;
  cluster.name = path;
  cluster.measured.clear();  // other nodes are another cluster
  CAIRN_RETURN_IF_ERROR(
      TakeTomlTable(table, path, [&](const TomlField& field) { return TakeKey(field, cluster); }));
  for (const auto& [name, field] : kFields)
    if (const auto* number = std::get_if<double Cluster::*>(&field); number && cluster.**number <= 0)
      return InvalidArgument("{}: {} is missing; give it, or a base", path, name);
  if (cluster.sms <= 0 && !cluster.cpu)
    return InvalidArgument("{}: sms is missing; give it, or a base", path);
  return cluster;
}

}  // namespace

std::span<const Cluster> BuiltInClusters() { return kBuiltIn; }

const Cluster* BuiltInCluster(std::string_view name) {
  const auto found = std::ranges::find(kBuiltIn, name == "h100-80" ? "h100" : name, &Cluster::name);
  return found == std::end(kBuiltIn) ? nullptr : found;
}

Result<Cluster> FindCluster(const std::string& name_or_path) {
  if (const Cluster* cluster = BuiltInCluster(name_or_path)) return *cluster;
  std::ifstream file(name_or_path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf()))
    return InvalidArgument("'{}' is neither a readable file nor one of {}", name_or_path,
                           fmt::join(Names(), ", "));
  CAIRN_ASSIGN_OR_RETURN(const toml::table table, ParseToml(text.str(), name_or_path));
  return FromTable(name_or_path, table);
}

}  // namespace cairn
