// A unit is a tar, or a bundle that is too small; its members stay together. Units are sorted by run, form
// and step and fill one bundle after another until each reaches the target. A unit that does not fit is
// passed over and is the first candidate of the next bundle. Forms share a bundle only below the least
// size, and two members of one directory never do. What is too little for a bundle waits; with `all` it
// goes where there is room, or two units and more become a bundle as they are.

#include "tools/archive/bundle/bundle_plan.h"

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <tuple>

#include "tools/archive/store/bundle.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxIndexBytes = kMaxRecordBytes / 2;  // of the records of a bundle

// A file whose members go into a bundle together, or not at all.
struct Unit {
  std::string file;
  std::vector<const ArchiveRecord*> members;
  uint64_t bytes = 0;
  uint64_t index_bytes = 0;
};

auto OrderOf(const Unit& unit) {
  const ArchiveRecord& first = *unit.members.front();
  return std::tie(first.name, first.form, first.step);
}

// What could be in a bundle and is in none of the least size, in order.
std::list<Unit> UnitsOf(const std::vector<ArchiveMember>& members, const BundleSizes& sizes,
                        const std::function<bool(const std::string& file)>& pass_over) {
  std::map<std::string, Unit> units;
  std::set<std::string> unfit;
  for (const ArchiveMember& m : members) {
    Unit& unit = units[m.file()];
    unit.file = m.file();
    if (m.state != MemberState::kVerified || !m.record->pieces.empty()) {
      unfit.insert(m.file());
      continue;
    }
    unit.members.push_back(&*m.record);
    unit.bytes += m.bytes;
    unit.index_bytes += EncodeRecord(*m.record).size();
  }
  std::list<Unit> fit;
  for (auto& [file, unit] : units) {
    const uint64_t limit = ParseBundleName(file) ? sizes.least : sizes.target;
    if (unit.bytes < limit && unit.index_bytes <= kMaxIndexBytes && !unfit.contains(file) && !pass_over(file))
      fit.push_back(std::move(unit));
  }
  fit.sort([](const Unit& a, const Unit& b) { return OrderOf(a) < OrderOf(b); });
  return fit;
}

class Filler {
 public:
  explicit Filler(const BundleSizes& sizes) : sizes_(&sizes) {}

  // Forms keep to themselves, so that weights alone are recalled without the rest, unless that makes a bundle
  // too small.
  bool Fits(const Unit& unit) {
    return HasRoom(unit) &&
           (members_.empty() || bytes_ < sizes_->least || members_.back().form == unit.members.front()->form);
  }

  bool HasRoom(const Unit& unit) {
    const bool room =
        bytes_ + unit.bytes <= sizes_->most && index_bytes_ + unit.index_bytes <= kMaxIndexBytes;
    crowded_ = crowded_ || !room;
    return room && std::ranges::none_of(unit.members, [this](const ArchiveRecord* record) {
             return directories_.contains(record->directory);
           });
  }

  void Take(const Unit& unit) {
    files_.push_back(unit.file);
    for (const ArchiveRecord* record : unit.members) {
      members_.push_back(*record);
      directories_.insert(record->directory);
    }
    bytes_ += unit.bytes;
    index_bytes_ += unit.index_bytes;
  }

  // All of them, or none.
  bool Absorb(const std::list<Unit>& units) {
    Filler larger = *this;
    for (const Unit& unit : units) {
      if (!larger.HasRoom(unit)) return false;
      larger.Take(unit);
    }
    *this = std::move(larger);
    return true;
  }

  size_t units() const { return files_.size(); }
  uint64_t bytes() const { return bytes_; }
  bool full() const { return bytes_ >= sizes_->target; }
  bool crowded() const { return crowded_ && bytes_ >= sizes_->least; }

  BundleDraft Draft() && {
    const std::string why = full()      ? "they reach the size of a bundle"
                            : crowded() ? "nothing else that waits has room beside them"
                                        : "nothing is left to add";
    std::string name = BundleName(members_);
    return {std::move(name), std::move(members_), std::move(files_), bytes_, why};
  }

 private:
  const BundleSizes* sizes_;
  std::vector<ArchiveRecord> members_;
  std::vector<std::string> files_;
  std::set<std::string> directories_;
  uint64_t bytes_ = 0, index_bytes_ = 0;
  bool crowded_ = false;  // something had no room
};

}  // namespace

BundlePlan PlanBundles(const std::vector<ArchiveMember>& members, const BundleSizes& sizes, bool all,
                       const std::function<bool(const std::string& file)>& pass_over) {
  BundlePlan plan;
  if (sizes.target == 0) return plan;
  std::list<Unit> left = UnitsOf(members, sizes, pass_over);
  std::vector<Filler> fillers;
  while (!left.empty()) {
    Filler filler(sizes);
    std::list<Unit> taken, passed;
    while (!left.empty() && !filler.full()) {
      const bool fits = filler.Fits(left.front());
      if (fits) filler.Take(left.front());
      (fits ? taken : passed).splice((fits ? taken : passed).end(), left, left.begin());
    }
    left.splice(left.begin(), passed);
    const bool enough = filler.full() || filler.crowded();
    // A rest that is too small goes where there is room for it.
    if (all && !enough && filler.bytes() < sizes.least &&
        std::ranges::any_of(fillers, [&](Filler& host) { return host.Absorb(taken); }))
      continue;
    if (filler.units() > 1 && (enough || all)) {
      fillers.push_back(std::move(filler));
      continue;
    }
    for (const Unit& unit : taken) {
      plan.waiting_members += unit.members.size();
      plan.waiting_bytes += unit.bytes;
    }
  }
  for (Filler& filler : fillers) plan.bundles.push_back(std::move(filler).Draft());
  return plan;
}

}  // namespace cairn
