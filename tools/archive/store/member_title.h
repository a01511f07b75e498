// What people call the members of a list: RUN@STEP, or RUN~ID@STEP where several runs of one name are in it.
//
// ID is the begin of the run's identity, as short as tells them apart; selectors take it back (FindMember).
// Trees are told apart step by step: each has an identity of its own.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tools/archive/store/store.h"

namespace cairn {

class MemberTitles {
 public:
  MemberTitles() = default;
  explicit MemberTitles(const std::vector<ArchiveMember>& members);

  // `id`: empty if it is not known; such a member takes nobody's name.
  void Add(const std::string& run, const std::string& id, int64_t step, bool tree);
  void Add(const ArchiveMember& member);
  std::string Of(const std::string& run, const std::string& id, int64_t step, bool tree) const;
  std::string Of(const ArchiveMember& member) const;
  // Whether the titles of any two runs need their identities.
  bool ambiguous() const;

 private:
  std::map<std::string, std::set<std::string>> ids_;  // of those of one name
};

inline constexpr size_t kMinIdDigits = 4;

}  // namespace cairn
