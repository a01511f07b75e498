// Host names do not show which ranks share a directory. So each rank leaves a mark with the session's nonce.
// Once all have, each lists the marks: their ranks share the directory, and the first of them leads. The
// owner is checked before anything is made there, and the leader cleans the directory only with the claim
// held: nothing of another run or training is removed.

#include "runtime/saving/local_place.h"

#include <algorithm>
#include <map>

#include "ckpt/base/digest.h"
#include "ckpt/base/this_process.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/step/partial_dir.h"
#include "runtime/control/rank_message.h"

namespace cairn {
namespace {

std::string Replace(std::string text, std::string_view what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

constexpr std::string_view kMark = ".rank-";
constexpr size_t kNonceDigits = 8;

std::string MarkPrefix(const std::string& nonce) { return fmt::format("{}{}-", kMark, nonce); }

// The ranks whose marks are in the directory. Ranks that find the same marks share it, on any hosts.
Result<std::vector<int>> MarksIn(FileSystem& fs, const std::string& directory, const std::string& nonce) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  const std::string prefix = MarkPrefix(nonce);
  std::vector<int> ranks;
  for (const std::string& name : names)
    if (name.starts_with(prefix)) ranks.push_back(std::atoi(name.c_str() + prefix.size()));
  std::ranges::sort(ranks);
  return ranks;
}

// The ranks that share this directory: every rank leaves a mark, and lists the marks when all have.
Result<std::vector<int>> FindSharers(FileSystem& fs, const std::string& directory, const LocalOwner& owner,
                                     const std::string& nonce, ControlPlane& control) {
  const std::string mark = JoinPath(directory, MarkPrefix(nonce) + std::to_string(control.rank()));
  Status status = CheckLocalOwner(fs, directory, owner);
  if (status.ok()) status = MakeOutputDir(fs, directory);
  if (status.ok()) status = WriteSmallFile(fs, mark, "");
  const Status marked = Agree(control, status, "local directories");
  Result<std::vector<int>> ranks = marked.ok() ? MarksIn(fs, directory, nonce) : marked;
  if (ranks.ok() && std::ranges::count(*ranks, control.rank()) == 0)
    ranks = IoError("{}: was made, but its directory does not list it; keep local steps elsewhere", mark);
  const Status seen = Agree(control, ranks.status(), "local directories");
  if (status.ok()) (void)fs.RemoveFile(mark);
  CAIRN_RETURN_IF_ERROR(seen);
  return ranks;
}

// The run directory as rank 0 sees it, from this host.
Result<LocalOwner> ShareOwner(const std::string& run_dir, const std::string& run, ControlPlane& control) {
  const auto own = [&]() -> Result<std::string> {
    CAIRN_ASSIGN_OR_RETURN(const LocalOwner owner, OwnerOf(run_dir, run));
    return EncodeLocalOwner(owner);
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string text, FromRoot(control, "owner of local steps", own));
  CAIRN_ASSIGN_OR_RETURN(LocalOwner owner, DecodeLocalOwner(text));
  owner.host = HostName();
  return owner;
}

// Removes leftovers of saves, and marks of sessions that were killed while they opened. Each rank of this
// session removes its own mark meanwhile. Call with the claim held.
Status Clean(FileSystem& fs, const std::string& directory) {
  CAIRN_RETURN_IF_ERROR(CleanLeftovers(
      fs, directory, [](const Status& why) { Say("leftover not removed: " + why.message()); }));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  for (const std::string& name : names)
    if (IsRankMark(name)) CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, JoinPath(directory, name)));
  return OkStatus();
}

Status Claim(FileSystem& fs, const LocalOwner& owner, LocalPlace& place) {
  CAIRN_ASSIGN_OR_RETURN(LocalClaim claim, LocalClaim::Take(fs, place.run_dir, owner));
  place.claim = std::make_shared<const LocalClaim>(std::move(claim));
  return Clean(fs, place.run_dir);
}

// Which group each rank is in, agreed by all.
Result<std::vector<int>> FindGroup(const Redundancy& redundancy, ControlPlane& control) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> host_of_rank,
                         ShareAll(control, HostName(), "hosts of the ranks"));
  CAIRN_ASSIGN_OR_RETURN(const auto groups, CutIntoGroups(host_of_rank, redundancy));
  for (const std::vector<int>& group : groups)
    if (std::ranges::count(group, control.rank()) > 0) return group;
  return InvalidArgument("rank {} is in no group", control.rank());
}

}  // namespace

Result<std::vector<std::vector<int>>> CutIntoGroups(const std::vector<std::string>& host_of_rank,
                                                    const Redundancy& redundancy) {
  const int world = static_cast<int>(host_of_rank.size());
  if (world <= redundancy.parity)
    return InvalidArgument(
        "redundancy against the loss of {} ranks of a group needs more ranks than the {} there are",
        redundancy.parity, world);
  // Sorted by the number of ranks of the same host before it: neighbours are on different hosts.
  std::map<std::string, int> seen;
  std::vector<std::pair<int, int>> order;
  for (int rank = 0; rank < world; ++rank) order.emplace_back(seen[host_of_rank[rank]]++, rank);
  std::ranges::sort(order);
  int count = (world + redundancy.group - 1) / redundancy.group;
  while (world / count <= redundancy.parity) --count;
  if ((world + count - 1) / count > kMaxCodeBlocks)
    return InvalidArgument("{} ranks cannot be cut into groups of {}", world, redundancy.group);
  std::vector<std::vector<int>> groups(count);
  for (int i = 0; i < world; ++i) groups[static_cast<int64_t>(i) * count / world].push_back(order[i].second);
  for (std::vector<int>& group : groups) std::ranges::sort(group);
  return groups;
}

bool IsRankMark(std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!name.starts_with(kMark)) return false;
  name.remove_prefix(kMark.size());
  if (name.size() < kNonceDigits + 2 || name[kNonceDigits] != '-') return false;
  return IsHex(name.substr(0, kNonceDigits)) && std::ranges::all_of(name.substr(kNonceDigits + 1), is_digit);
}

Result<LocalPlace> OpenLocalPlace(FileSystem& fs, const TrainConfig& config, const std::string& run,
                                  const std::string& nonce, ControlPlane& control) {
  const Redundancy redundancy = ParseRedundancy(config.redundancy).value();
  const std::string directory = Replace(config.save_local, "{rank}", std::to_string(control.rank()));
  LocalPlace place{.run_dir = JoinPath(directory, run),
                   .parity = redundancy.parity,
                   .keep_last = config.keep_last_local,
                   .claim = nullptr};
  CAIRN_ASSIGN_OR_RETURN(const LocalOwner owner, ShareOwner(config.save, run, control));
  CAIRN_ASSIGN_OR_RETURN(place.sharers, FindSharers(fs, place.run_dir, owner, nonce, control));
  place.leader = place.sharers[0] == control.rank();
  CAIRN_RETURN_IF_ERROR(
      Agree(control, place.leader ? Claim(fs, owner, place) : OkStatus(), "local directories"));
  if (redundancy.group > 0) {
    CAIRN_ASSIGN_OR_RETURN(place.group, FindGroup(redundancy, control));
  }
  return place;
}

}  // namespace cairn
