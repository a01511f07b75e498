// A file starts from a built-in cluster, or from nothing, and each key replaces a field; then the whole is
// checked for missing fields. It never keeps the base's measured runs, even if it changes nothing, because
// other nodes are another cluster.

#include "tools/plan/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
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

const Cluster* BuiltIn(const std::string& given) {
  const std::string name = given == "h100-80" ? "h100" : given;
  const auto found = std::find_if(std::begin(kBuiltIn), std::end(kBuiltIn),
                                  [&](const Cluster& cluster) { return cluster.name == name; });
  return found == std::end(kBuiltIn) ? nullptr : found;
}

constexpr std::pair<std::string_view, double Cluster::*> kNumbers[] = {
    {"memory-gb", &Cluster::memory_gb},         {"half-tflops", &Cluster::half_tflops},
    {"single-tflops", &Cluster::single_tflops}, {"hbm-gbps", &Cluster::hbm_gbps},
    {"link-gbps", &Cluster::link_gbps},         {"nic-gbps", &Cluster::nic_gbps},
    {"pcie-gbps", &Cluster::pcie_gbps}};

Status TakeNumber(const std::string& where, const toml::node& node, auto& field) {
  using Field = std::remove_reference_t<decltype(field)>;
  const auto value = node.value<double>();
  if (!value || !(*value > 0) || *value > 1e9) return InvalidArgument("{}: expected a number above 0", where);
  if (std::is_integral_v<Field> && *value != std::floor(*value))
    return InvalidArgument("{}: expected a whole number", where);
  field = static_cast<Field>(*value);
  return OkStatus();
}

constexpr std::pair<std::string_view, int Cluster::*> kCounts[] = {
    {"gpus-per-node", &Cluster::gpus_per_node}, {"sms", &Cluster::sms}, {"cores", &Cluster::cores}};
constexpr std::pair<std::string_view, bool Cluster::*> kFlags[] = {
    {"bf16", &Cluster::has_bf16}, {"fp8", &Cluster::has_fp8}, {"cpu", &Cluster::cpu}};

Status UnknownKey(const TomlField& field) {
  std::vector<std::string> known = {"base", "name"};
  for (const auto& [name, count] : kCounts) known.emplace_back(name);
  for (const auto& [name, flag] : kFlags) known.emplace_back(name);
  for (const auto& [name, number] : kNumbers) known.emplace_back(name);
  return UnknownTomlKey(field, known, "see cairn plan --help");
}

Status TakeKey(const TomlField& field, Cluster& cluster) {
  const auto& [written, key, place, node] = field;
  const std::string where = fmt::format("{}: {}", place, key);
  if (key == "base") {
    const Cluster* base = BuiltIn(node.value_or(std::string()));
    if (!base) return InvalidArgument("{}: base is one of {}", where, fmt::join(Names(), ", "));
    return OkStatus();  // taken before all others
  }
  if (key == "name") {
    cluster.name = node.value_or(cluster.name);
    return OkStatus();
  }
  for (const auto& [name, flag] : kFlags) {
    if (name != key) continue;
    if (!node.is_boolean()) return InvalidArgument("{}: expected true or false", where);
    cluster.*flag = *node.value<bool>();
    return OkStatus();
  }
  for (const auto& [name, count] : kCounts)
    if (name == key) return TakeNumber(where, node, cluster.*count);
  for (const auto& [name, number] : kNumbers)
    if (name == key) return TakeNumber(where, node, cluster.*number);
  return UnknownKey(field);
}

Result<Cluster> FromTable(const std::string& path, const toml::table& table) {
  Cluster cluster;
  if (const Cluster* base = BuiltIn(table["base"].value_or(std::string()))) cluster = *base;
  cluster.name = path;
  cluster.measured.clear();  // other nodes are another cluster
  CAIRN_RETURN_IF_ERROR(
      TakeTomlTable(table, path, [&](const TomlField& field) { return TakeKey(field, cluster); }));
  for (const auto& [name, number] : kNumbers)
    if (cluster.*number <= 0) return InvalidArgument("{}: {} is missing; give it, or a base", path, name);
  if (cluster.sms <= 0 && !cluster.cpu)
    return InvalidArgument("{}: sms is missing; give it, or a base", path);
  return cluster;
}

}  // namespace

std::span<const Cluster> BuiltInClusters() { return kBuiltIn; }

Result<Cluster> FindCluster(const std::string& name_or_path) {
  if (const Cluster* cluster = BuiltIn(name_or_path)) return *cluster;
  std::ifstream file(name_or_path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf()))
    return InvalidArgument("'{}' is neither a file that can be read nor one of {}", name_or_path,
                           fmt::join(Names(), ", "));
  CAIRN_ASSIGN_OR_RETURN(const toml::table table, ParseToml(text.str(), name_or_path));
  return FromTable(name_or_path, table);
}

}  // namespace cairn
