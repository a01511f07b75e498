// The local steps of a training, spread over the directories of all ranks (local_place.h): lists them, loads
// them from the ranks that have their files, and rebuilds lost files from parity.
//
// All member functions except the getters are collective.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ckpt/job/local_place.h"
#include "ckpt/job/peer_file_system.h"
#include "ckpt/model/catalog.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/health.h"

namespace cairn {

class LocalSteps {
 public:
  // Loads a step through a file system in which `directory` has all its files.
  using Loader = std::function<Status(PeerFileSystem& fs, const std::string& directory)>;

  // `nonce`: for names that only this session writes; `say`: what a user should know.
  LocalSteps(FileSystem& fs, const LocalPlace& place, std::string nonce, JobRanks& ranks, PeerFiles& peers,
             std::function<void(const std::string& line)> say)
      : fs_(fs),
        place_(place),
        nonce_(std::move(nonce)),
        ranks_(ranks),
        peers_(peers),
        say_(std::move(say)) {}

  // Asks all ranks for their files.
  Status Survey();
  // Steps whose manifest some rank has, ascending; the same on all ranks.
  std::vector<int64_t> steps() const;
  // From the step's manifest; nullopt if there is no record.
  std::optional<Health> HealthAt(int64_t step) const { return steps_.at(step).health; }
  const Descent& DescentAt(int64_t step) const { return steps_.at(step).descent; }

  // Runs `load`. If files are lost, or some rank's `load` meets damage, or `verify`: verifies every byte of
  // the step, and rebuilds what is lost, first. Returns this rank's outcome.
  Status Load(int64_t step, const Loader& load, bool verify = false);

  // Marks steps that are newer than `step` as superseded: they no longer count as the newest.
  Status SetAsideNewerThan(int64_t step);

 private:
  using Holder = PeerFileSystem::Place;
  using Holders = std::map<std::string, std::vector<Holder>>;  // by file name
  struct Known {
    Digest manifest{};  // of its bytes
    std::optional<Health> health;
    Descent descent;
    Holders files;
  };
  // The step that is being loaded, on every rank.
  struct Current {
    int64_t step = 0;
    std::string manifest_text;
    std::string index;
    Manifest manifest;
    StepCatalog catalog;
  };
  // Files that were verified.
  struct Verified {
    std::map<std::string, int> rank_of;           // by name
    std::map<std::string, ParityGroup> group_of;  // by name of a shard
    std::set<std::string> here;                   // those of this rank
  };

  std::string Directory(int64_t step) const;
  Committer CommitterOf(int64_t step) const;
  std::string FactsOfThisRank() const;
  std::map<std::string, PeerFiles::Offer> Offers(int64_t step) const;

  Status Open(int64_t step);
  Result<std::string> ReadCopy(const std::string& name, const Digest& digest, uint64_t bytes);
  std::vector<int> RanksWith(const std::string& name, uint64_t bytes) const;
  bool AllShardsThere() const;
  Status LoadOnce(const Loader& load);

  Status Repair();
  Result<Verified> VerifyAll();
  std::string VerifyHere() const;
  Status VerifyShardAt(const std::string& directory, const std::string& name) const;
  Status CheckRebuildable(const Verified& verified) const;
  Status RebuildHere(const Verified& verified);
  void RestoreCopies(const Verified& verified, const std::string& partial,
                     std::vector<std::function<Status()>>& jobs);
  Status Install() const;

  FileSystem& fs_;
  const LocalPlace& place_;
  const std::string nonce_;
  JobRanks& ranks_;
  PeerFiles& peers_;
  const std::function<void(const std::string& line)> say_;
  std::map<int64_t, Known> steps_;
  Current current_;
};

}  // namespace cairn
