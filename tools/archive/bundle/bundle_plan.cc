// Units (tars) are sorted by run, form and step, and fill one bundle after another until each reaches the
// target. A unit that does not fit is skipped and is the first candidate of the next bundle. Forms share a
// bundle only below the least size, and two members of one directory never do. If the rest is too little for
// a bundle, it waits; with `all` it joins a bundle that has room, or two units or more become a bundle.

#include "tools/archive/bundle/bundle_plan.h"

#include <algorithm>
#include <list>
#include <set>
#include <tuple>

#include "tools/archive/store/bundle.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxIndexBytes = kMaxRecordBytes / 2;  // of the records of a bundle

// A tar that could go into a bundle.
struct Unit {
  const ArchiveRecord* record = nullptr;
  uint64_t bytes = 0;
  uint64_t index_bytes = 0;
};

auto OrderOf(const Unit& unit) { return std::tie(unit.record->name, unit.record->form, unit.record->step); }

// The tars that could go into a bundle, in order.
std::list<Unit> UnitsOf(const std::vector<ArchiveMember>& members, const BundleSizes& sizes,
                        const std::function<bool(const std::string& file)>& pass_over) {
  std::list<Unit> units;
  for (const ArchiveMember& m : members) {
    if (m.state != MemberState::kVerified || m.file() != m.tar || !m.record->pieces.empty()) continue;
    const Unit unit{&*m.record, m.bytes, EncodeRecord(*m.record).size()};
    if (unit.bytes < sizes.target && unit.index_bytes <= kMaxIndexBytes && !pass_over(m.tar))
      units.push_back(unit);
  }
  units.sort([](const Unit& a, const Unit& b) { return OrderOf(a) < OrderOf(b); });
  return units;
}

class Filler {
 public:
  explicit Filler(const BundleSizes& sizes) : sizes_(&sizes) {}

  // Each form has its own bundles, to recall weights by themselves, unless a bundle would be too small.
  bool Fits(const Unit& unit) {
    return HasRoom(unit) &&
           (members_.empty() || bytes_ < sizes_->least || members_.back().form == unit.record->form);
  }

  bool HasRoom(const Unit& unit) {
    const bool room =
        bytes_ + unit.bytes <= sizes_->most && index_bytes_ + unit.index_bytes <= kMaxIndexBytes;
    crowded_ = crowded_ || !room;
    return room && !directories_.contains(unit.record->directory);
  }

  void Take(const Unit& unit) {
    members_.push_back(*unit.record);
    directories_.insert(unit.record->directory);
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

  size_t units() const { return members_.size(); }
  uint64_t bytes() const { return bytes_; }
  bool full() const { return bytes_ >= sizes_->target; }
  bool crowded() const { return crowded_ && bytes_ >= sizes_->least; }

  BundleDraft Draft() && {
    const std::string why = full()      ? "they reach the size of a bundle"
                            : crowded() ? "nothing else that waits fits into their bundle"
                                        : "nothing is left to add";
    std::string name = BundleName(members_);
    std::vector<std::string> files;
    for (const ArchiveRecord& member : members_) files.push_back(TarName(member));
    return {std::move(name), std::move(members_), std::move(files), bytes_, why};
  }

 private:
  const BundleSizes* sizes_;
  std::vector<ArchiveRecord> members_;
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
    // A rest that is too small goes into another bundle with room for it.
    if (all && !enough && filler.bytes() < sizes.least &&
        std::ranges::any_of(fillers, [&](Filler& host) { return host.Absorb(taken); }))
      continue;
    if (filler.units() > 1 && (enough || all)) {
      fillers.push_back(std::move(filler));
      continue;
    }
    for (const Unit& unit : taken) {
      ++plan.waiting_members;
      plan.waiting_bytes += unit.bytes;
    }
  }
  for (Filler& filler : fillers) plan.bundles.push_back(std::move(filler).Draft());
  return plan;
}

}  // namespace cairn
