// Where the ranks of a team meet: small files in a directory that all of them can see, for example the step's
// partial directory. It outlives the job's own channels, which may only add news (TeamNews).
//
// Rank 0 makes the directory, and begins. Every rank leaves a file for rank 0 when it has finished; the file
// of the first failure ends all other ranks. Waiting has a deadline, which any progress of a peer renews: a
// new or larger file. A waiting rank lists directories (ckpt/io/fresh_names.h), and believes that one is gone
// only when no cache of names can still hide it, or the step that it has become.
//
// A single rank meets nobody, and writes no file.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/run/rank_team.h"

namespace cairn {

class Rendezvous {
 public:
  // Does nothing yet.
  Rendezvous(FileSystem& fs, std::string directory, RankTeam team)
      : fs_(fs), directory_(std::move(directory)), team_(std::move(team)) {}
  const RankTeam& team() const { return team_; }

  // Rank 0 says that the directory is ready for this launch. It waits until all ranks have arrived, unless
  // the team meets only `once`. The others wait for that. They never enter a room that a killed launch left,
  // and write nothing into its directory. Errors: InvalidArgument if nothing names the launch; on rank 0
  // Aborted naming the ranks that did not arrive within `patience`; elsewhere Aborted after `start_patience`,
  // or if this host does not see what rank 0 has opened.
  Status Begin() const;
  // OK unless a rank has failed or the directory is gone. Errors: that rank's failure; Aborted of a lost one.
  Status Check() const;
  // This rank has finished, and leaves `blob` for rank 0. Rank 0 waits until all have, and gets the blobs by
  // rank; the others get none and do not wait. Errors: those of Check() and of the disk; Aborted without
  // progress for `patience`, naming the ranks that are missing.
  Result<std::vector<std::string>> GatherToRoot(std::string blob) const;
  // The other ranks wait until rank 0 has published the step, as `published` finds, or the news say. Errors:
  // those of Check(); Aborted after `patience`.
  Status AwaitPublished(const Patience& patience, const std::function<bool()>& published) const;

  // This rank has failed and leaves. The first failure ends all others.
  void Fail(const Status& why) const;
  // After a failure rank 0 waits for a while until all have left: then no rank writes into the directory, or
  // looks for the reason in it.
  void Dismiss() const;

 private:
  using Names = std::vector<std::string>;

  Status Post(std::string_view name, std::string_view text) const;
  Status Enter() const;
  Result<std::string> CallRanks() const;
  bool IsOurRoom(const std::string& name, const std::string& word) const;
  Status AwaitOthers() const;
  Result<Names> ListOrFail(const std::function<bool()>& published = [] { return false; }) const;
  Status FailureIn(const Names& names) const;
  std::string NamesOf(const Names& names, const std::vector<int>& ranks) const;

  FileSystem& fs_;
  const std::string directory_;
  const RankTeam team_;
};

// True for the names that a rendezvous leaves in its directory.
bool IsTeamFileName(std::string_view name);

}  // namespace cairn
