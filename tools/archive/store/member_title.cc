#include "tools/archive/store/member_title.h"

#include <algorithm>

namespace cairn {
namespace {

std::string GroupOf(const std::string& run, int64_t step, bool tree) {
  return tree ? fmt::format("{}@{}", run, step) : run;
}

// How many digits distinguish `ids`. They are sorted, so the most similar ones are neighbours.
size_t DigitsFor(const std::set<std::string>& ids) {
  size_t digits = kMinIdDigits;
  const std::string* before = nullptr;
  for (const std::string& id : ids) {
    if (before != nullptr) {
      const auto [a, b] = std::ranges::mismatch(*before, id);
      digits = std::max<size_t>(digits, b - id.begin() + 1);
    }
    before = &id;
  }
  return digits;
}

}  // namespace

MemberTitles::MemberTitles(const std::vector<ArchiveMember>& members) {
  for (const ArchiveMember& m : members) Add(m);
}

void MemberTitles::Add(const ArchiveMember& m) {
  if (m.record) Add(m.run, m.record->run, m.step, m.form == Form::kFiles);
}

void MemberTitles::Add(const std::string& run, const std::string& id, int64_t step, bool tree) {
  if (!id.empty()) ids_[GroupOf(run, step, tree)].insert(id);
}

std::string MemberTitles::Of(const std::string& run, const std::string& id, int64_t step, bool tree) const {
  const auto found = ids_.find(GroupOf(run, step, tree));
  if (id.empty() || found == ids_.end() || found->second.size() < 2) return fmt::format("{}@{}", run, step);
  return fmt::format("{}~{}@{}", run, id.substr(0, DigitsFor(found->second)), step);
}

std::string MemberTitles::Of(const ArchiveMember& m) const {
  return Of(m.run, m.record ? m.record->run : "", m.step, m.form == Form::kFiles);
}

bool MemberTitles::ambiguous() const {
  return std::ranges::any_of(ids_, [](const auto& group) { return group.second.size() > 1; });
}

}  // namespace cairn
