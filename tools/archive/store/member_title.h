// The titles of members in a list: RUN@STEP, or RUN~ID@STEP if several runs of the list have one name.
//
// ID is the beginning of the run's identity, as short as distinguishes them; selectors accept it
// (FindMember). Trees are distinguished step by step: each has its own identity.
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

  // `id`: empty if it is not known; such a member does not make a name ambiguous.
  void Add(const std::string& run, const std::string& id, int64_t step, bool tree);
  void Add(const ArchiveMember& member);
  std::string Of(const std::string& run, const std::string& id, int64_t step, bool tree) const;
  std::string Of(const ArchiveMember& member) const;
  // True if any two runs have one name.
  bool ambiguous() const;

 private:
  std::map<std::string, std::set<std::string>> ids_;  // of those of one name
};

inline constexpr size_t kMinIdDigits = 4;

}  // namespace cairn
