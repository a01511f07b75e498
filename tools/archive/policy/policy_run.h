// Carries out a policy once: stores what its classes keep, removes sources that are proven in the store,
// prunes, bundles, and writes the report. Prints nothing; it reports events.
//
// Several processes of one launch may run a policy together (schedule/team.h). Each stores its share of the
// sources; the last to leave prunes, bundles and writes the report of all.
#pragma once

#include <functional>
#include <string>

#include "tools/archive/bundle/bundler.h"
#include "tools/archive/policy/policy_plan.h"
#include "tools/archive/policy/policy_report.h"
#include "tools/archive/policy/prune.h"
#include "tools/archive/schedule/team.h"
#include "tools/archive/store/archiver.h"

namespace cairn {

// The events of a run.
struct PolicyEvents {
  std::function<void(const std::string& line)> note = [](const auto&) {};     // for people; not a failure
  std::function<void(const std::string& line)> problem = [](const auto&) {};  // a failure of the report
  std::function<ByteProgress(const PlanEntry&)> archiving = [](const auto&) { return ByteProgress(); };
  std::function<void()> archived = [] {};  // ends what `archiving` started
  std::function<void(const PlanEntry&, const ArchiveOutcome&)> stored = [](const auto&, const auto&) {};
  std::function<void(const std::string& source)> source_removed = [](const auto&) {};
  std::function<void(const PruneEntry&)> pruned = [](const auto&) {};
  std::function<ByteProgress(const BundleDraft&)> bundling;
  std::function<void(const BundleDraft&, const Bundle&)> bundled;
};

// Makes the bundles that are due. Returns one line for each problem. Requires the store's lock.
Result<std::vector<std::string>> MakeBundlesBy(FileSystem& fs, const Policy& policy, bool all,
                                               const PolicyEvents& events);

class PolicyRun {
 public:
  PolicyRun(FileSystem& fs, const Policy& policy, ProofFinder find_proof, PolicyEvents events);

  // Stores this process's share of the sources; a source that fails is a failure of the report, and the run
  // continues. The last process of the launch then prunes, bundles, and writes the report of all of them. A
  // run that cannot begin is reported by the process that leads. Errors: those of TeamStore, and of the disk
  // before the last process is known.
  Status Run(const RankTeam& team);

  const RunReport& report() const { return report_; }
  // False if other processes are still working: the last of them reports.
  bool reported() const { return reported_; }

 private:
  Result<TeamStore> Join(const RankTeam& team);
  Status StoreShare(TeamStore& team);
  Status Conclude(TeamStore& team);
  void Report(const Status& status);
  Status Prepare();
  Result<Plan> PlanNow();
  void AddShares(const std::vector<ShareResult>& shares);
  void Add(const ShareResult& share);
  ShareResult StoreEntry(TeamStore& team, const PlanEntry& entry);
  bool StoreForm(TeamStore& team, const PlanEntry& entry, bool weights, bool delete_source,
                 ShareResult& share);
  Result<ArchiveOutcome> ArchiveWithinQuota(TeamStore& team, const PlanEntry& entry,
                                            const ArchiveRequest& request);
  void NoteInLedger(const Plan& plan);

  FileSystem& fs_;
  const Policy& policy_;
  const ProofFinder find_proof_;
  const PolicyEvents events_;
  const cairn::Store store_;
  const std::string claim_;
  RunReport last_, report_;
  bool reported_ = false;
  StoreUsage largest_;  // upper bound of any one member
  double seconds_ = 0;  // spent on what was stored
};

}  // namespace cairn
