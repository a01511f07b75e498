// For each member: who claims it, to which of the policy's runs it belongs, and whether a class keeps that
// step. A member stays if any of that is unknown. Then each file is decided as a whole, because a bundle is
// removed only as a whole.
#include "tools/archive/policy/prune.h"

#include <algorithm>
#include <map>
#include <set>

#include "tools/archive/policy/run_timeline.h"
#include "tools/archive/store/claims.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/store/member_title.h"

namespace cairn {
namespace {

// A bundle is removed only as a whole.
void KeepSharedFiles(std::vector<PruneEntry>& entries) {
  std::map<std::string, size_t> kept;  // members of a file that stay
  for (const PruneEntry& entry : entries) kept[entry.file] += !entry.remove;
  for (PruneEntry& entry : entries) {
    const size_t others = kept[entry.file];
    if (!entry.remove || others == 0) continue;
    entry.remove = false;
    entry.why +=
        fmt::format(", but {} of its bundle {} {} kept", others, entry.file, others == 1 ? "is" : "are");
  }
}

class Pruner {
 public:
  Pruner(const Policy& policy, const std::vector<std::string>& adopted,
         const std::vector<ArchiveMember>& members, PolicyRuns runs)
      : policy_(policy), adopted_(adopted), members_(members), runs_(std::move(runs)) {
    for (const ScratchRun& run : runs_.runs)
      wanted_.push_back(WantedSteps(run, members, policy.classes, /*all=*/true));
    for (const ArchiveMember& m : members) NoteNewest(m);
  }

  void Decide(const ArchiveMember& m, PruneEntry& entry) const {
    if (const std::string why = WhyNotTouched(m); !why.empty()) {
      entry.why = why;
      return;
    }
    const std::vector<std::string> others = OtherClaims(*m.record);
    const WantedForms wanted = WantedOf(m);
    entry.why = WhyKept(m, wanted);
    if (!entry.why.empty()) {
      if (!others.empty()) entry.why += fmt::format(", claimed by {}, too", ClaimsText(others));
      return;
    }
    entry.why = "no class asks for it";
    entry.remove = others.empty();
    entry.drop_claim = !others.empty();
    if (!others.empty()) entry.why += fmt::format("; it stays, claimed by {}, too", ClaimsText(others));
  }

 private:
  // The newest healthy copy of each run, by the order of commits and by time: records of older versions do
  // not say whether a training went back.
  struct Newest {
    const ArchiveMember *by_commit = nullptr, *by_time = nullptr;
  };

  static bool Later(const ArchiveMember& a, const ArchiveMember* b, bool by_time) {
    if (b == nullptr) return true;
    const auto rank = [by_time](const ArchiveMember& m) {
      const BranchedStep commit = m.commit();
      return std::tuple(m.record->healthy, m.form == Form::kFull, by_time ? m.record->saved_unix_seconds : 0,
                        commit.branch(), commit.step);
    };
    return rank(a) >= rank(*b);
  }

  void NoteNewest(const ArchiveMember& m) {
    if (m.state != MemberState::kVerified || m.form == Form::kFiles) return;
    Newest& newest = newest_[m.record->run];
    if (Later(m, newest.by_commit, false)) newest.by_commit = &m;
    if (Later(m, newest.by_time, true)) newest.by_time = &m;
  }

  bool Ours(const std::string& claim) const {
    return policy_.Claims(claim) || std::ranges::find(adopted_, claim) != adopted_.end();
  }

  std::vector<std::string> OtherClaims(const ArchiveRecord& record) const {
    std::vector<std::string> claims = ClaimsOf(record);
    std::erase_if(claims, [this](const std::string& claim) { return Ours(claim); });
    return claims;
  }

  // Why the member stays regardless of the classes; empty if they decide.
  std::string WhyNotTouched(const ArchiveMember& m) const {
    if (m.form == Form::kFiles) return "a tree; classes do not apply to trees";
    if (m.state != MemberState::kVerified) return fmt::format("{}; look at it first", Name(m.state));
    const std::vector<std::string> claims = ClaimsOf(*m.record);
    if (std::ranges::none_of(claims, [this](const std::string& claim) { return Ours(claim); }))
      return claims.front() == kUnknownClaim && claims.size() == 1
                 ? "it is not known who asked for it"
                 : fmt::format("claimed by {}, not by this policy", ClaimsText(claims));
    for (const ScratchRun& run : runs_.runs)
      if (const auto tags = TagsOf(run.tags, ContentOf(*m.record)); !tags.empty())
        return "tagged " + tags.front();
    const auto same = std::ranges::count(runs_.runs, m.record->run, &ScratchRun::id);
    if (same == 0) return "of a run that is not on scratch, or not of this policy";
    if (same > 1) return "of a run that several directories are copies of";
    return {};
  }

  // Kept by its run and copies of that run, and by every run that has the same step on scratch.
  WantedForms WantedOf(const ArchiveMember& m) const {
    WantedForms all;
    const auto add = [&](const std::map<int64_t, WantedForms>& wanted, int64_t step) {
      if (const auto found = wanted.find(step); found != wanted.end()) all.Add(found->second);
    };
    for (size_t i = 0; i < runs_.runs.size(); ++i) {
      const ScratchRun& run = runs_.runs[i];
      if (run.id == m.record->run || run.origin == m.record->run) add(wanted_[i], m.step);
      for (const ScratchStep& step : run.steps)
        if (step.digest == ContentOf(*m.record)) add(wanted_[i], *step.step);
    }
    return all;
  }

  std::string WhyKept(const ArchiveMember& m, const WantedForms& wanted) const {
    if (m.form == Form::kFull ? wanted.full : wanted.weights) {
      std::string why;
      for (const std::string& reason : wanted.reasons) why += (why.empty() ? "" : ", ") + reason;
      return why;
    }
    if (m.form == Form::kFull && wanted.weights &&
        !HoldsContent(members_, m.record->manifest_digest, Form::kWeights))
      return "a class asks for its weights, which are stored nowhere else";
    const Newest& newest = newest_.at(m.record->run);
    if (newest.by_commit != &m && newest.by_time != &m) return {};
    return m.form == Form::kFull ? "the newest full copy of its run" : "the newest copy of its run";
  }

  const Policy& policy_;
  const std::vector<std::string>& adopted_;
  const std::vector<ArchiveMember>& members_;
  const PolicyRuns runs_;
  std::vector<std::map<int64_t, WantedForms>> wanted_;  // of each of them
  std::map<std::string, Newest> newest_;                // by identity
};

}  // namespace

Result<std::vector<PruneEntry>> PlanPrune(FileSystem& fs, const Policy& policy,
                                          const std::vector<std::string>& adopted) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore({fs, policy.store}));
  const Pruner pruner(policy, adopted, members, LookAtRuns(fs, policy, members));
  const MemberTitles titles(members);
  std::vector<PruneEntry> entries;
  for (const ArchiveMember& m : members) {
    PruneEntry entry{.tar = m.tar, .file = m.file(), .run = m.run, .step = m.step, .bytes = m.bytes};
    entry.title = titles.Of(m);
    if (m.record) entry.source = m.record->source;
    pruner.Decide(m, entry);
    entries.push_back(std::move(entry));
  }
  KeepSharedFiles(entries);
  return entries;
}

Result<std::vector<PruneEntry>> Prune(FileSystem& fs, const Policy& policy,
                                      const std::vector<std::string>& adopted) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<PruneEntry> entries, PlanPrune(fs, policy, adopted));
  std::vector<std::string> dropped;
  for (const PruneEntry& entry : entries)
    if (entry.drop_claim) dropped.push_back(entry.tar);
  const Store store(fs, policy.store);
  CAIRN_RETURN_IF_ERROR(DropClaims(store, dropped, policy.labels()));
  std::set<std::string> files;
  for (const PruneEntry& entry : entries)
    if (entry.remove && files.insert(entry.file).second)
      CAIRN_RETURN_IF_ERROR(RemoveMember(store, entry.file));
  return entries;
}

Result<std::vector<std::string>> OrphanedClaims(FileSystem& fs, const Policy& policy) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore({fs, policy.store}));
  std::map<std::string, size_t> orphans;
  for (const ArchiveMember& m : members) {
    if (!m.record) continue;
    for (const std::string& claim : ClaimsOf(*m.record)) {
      const bool gone = claim.starts_with(kPolicyClaim) &&
                        fs.Stat(claim.substr(kPolicyClaim.size())).status().kind() == StatusKind::kNotFound;
      if (claim == kUnknownClaim || (gone && !policy.Claims(claim))) ++orphans[claim];
    }
  }
  std::vector<std::string> lines;
  for (const auto& [claim, count] : orphans)
    lines.push_back(fmt::format("{} member{} {} kept for {}; archive prune --adopt '{}' takes {} over", count,
                                count == 1 ? "" : "s", count == 1 ? "is" : "are",
                                claim == kUnknownClaim ? "unknown; older versions noted nobody"
                                                       : claim + ", a file that no longer exists",
                                claim, count == 1 ? "it" : "them"));
  return lines;
}

}  // namespace cairn
