#include "tools/serve/copies.h"

#include <nlohmann/json.hpp>

#include "ckpt/io/strict_json.h"

namespace cairn {
namespace {

// The names of the tensors whose digests differ, or that one of the files lacks. A part is the tensor's name
// and offsets in it, with commas between.
Result<std::vector<std::string>> DifferentTensors(const std::string& a, const std::string& b) {
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json left, ParseStrictJson(a));
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json right, ParseStrictJson(b));
  std::vector<std::string> names;
  const auto add = [&](const nlohmann::json& from, const nlohmann::json& other, bool absent_only) {
    for (const auto& [part, digest] : from.items()) {
      const auto found = other.find(part);
      if (found == other.end() || (!absent_only && *found != digest))
        names.push_back(part.substr(0, part.find(',')));
    }
  };
  if (!left.is_object() || !right.is_object()) return Corrupt("digests of a rank are not an object");
  add(left, right, false);
  add(right, left, true);
  if (names.empty()) return Corrupt("digests of ranks differ in nothing");
  return names;
}

}  // namespace

Status Copies::Add(int rank, const nlohmann::json& files, const ReadFile& read) {
  for (const auto& [group, file] : files.items()) {
    const auto name = file.get<std::string>();
    const auto [at, added] = first_.try_emplace(group, rank, name);
    const auto& [first, known] = at->second;
    if (added || known == name) continue;
    CAIRN_ASSIGN_OR_RETURN(const std::string theirs, read(known));
    CAIRN_ASSIGN_OR_RETURN(const std::string own, read(name));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, DifferentTensors(theirs, own));
    const std::string more = names.size() > 1 ? fmt::format(" and {} more tensors", names.size() - 1) : "";
    const std::string what = fmt::format("ranks {} and {} differ in {}{}", first, rank, names[0], more);
    if (!group.starts_with("given-"))
      return InvalidArgument(
          "{}, and only one rank's would be saved; for different experts, make them DTensors or name their "
          "mesh by experts=; else replicas= names the ranks that hold the same",
          what);
    differences_.push_back(what + "; one rank's were kept");
  }
  return OkStatus();
}

}  // namespace cairn
