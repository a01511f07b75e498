// Which parameters are in which of an optimizer's groups, as `params` of the groups in a manifest's state
// (FORMAT.md, `param_groups`): canonical names, in the optimizer's order; null if not known.
#pragma once

#include <algorithm>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "convert/foreign/stored_source.h"

namespace cairn {

class GroupMembers {
 public:
  explicit GroupMembers(size_t groups = 0) : groups_(groups) {}

  // A parameter is added to the first group that has it.
  void Add(size_t group, const std::string& parameter);
  bool empty() const { return seen_.empty(); }
  // There are at least this many groups; the last ones may be empty.
  void Grow(size_t groups) { groups_.resize(std::max(groups_.size(), groups)); }

  // Puts them into `param_groups`, a list of as many objects; with another number the groups cannot be
  // matched, and if there are several all get null.
  void PutInto(nlohmann::json& param_groups) const;

 private:
  std::vector<std::vector<std::string>> groups_;
  std::set<std::string> seen_;
};

// The states in `catalog` whose arrays have one of these names, given for each group in order; several
// parameters if one array belongs to several.
GroupMembers MembersOfArrays(const StoredCatalog& catalog,
                             const std::vector<std::vector<std::string>>& names);

// By Megatron's own rule, from what it writes into its groups (megatron-core, optimizer/__init__.py): those
// of wd_mult 0 are vectors, those of a decoupled learning rate word embeddings and heads. Null if that does
// not tell the groups apart. Two groups without these facts are left unchanged: matrices, then vectors.
void PutMembersByMegatronsRule(const TensorTable& catalog, nlohmann::json& param_groups);

// Inverse of DeepSpeed's round_robin_gradients: the original order.
std::vector<std::string> WithoutRoundRobin(const std::vector<std::string>& order, size_t ranks);

}  // namespace cairn
