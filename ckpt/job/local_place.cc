// Host names do not show which ranks share a directory. So each rank leaves a mark with the session's nonce.
// Once all have, each lists the marks: their ranks share the directory, and the first of them leads. The
// owner is checked before anything is created, and the leader cleans the directory only with the claim held:
// nothing of another run or training is removed.
//
// Host names do not show which ranks are lost together, either: nodes may have equal names, and containers on
// one node different ones. The kernel's boot id tells nodes apart.

#include "ckpt/job/local_place.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/nonce.h"
#include "ckpt/base/stopwatch.h"
#include "ckpt/base/this_process.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/step/partial_dir.h"

namespace cairn {
namespace {

std::string Replace(std::string text, std::string_view what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

using Say = std::function<void(const std::string& line)>;

constexpr std::string_view kMark = ".rank-", kMemory = ".memory-";

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
                                     const std::string& nonce, JobRanks& ranks) {
  const std::string mark = JoinPath(directory, MarkPrefix(nonce) + std::to_string(ranks.rank()));
  Status status = CheckLocalOwner(fs, directory, owner);
  if (status.ok()) status = MakeOutputDir(fs, directory);
  if (status.ok()) status = WriteSmallFile(fs, mark, "");
  const Status marked = Agree(ranks, status, "local directories");
  Result<std::vector<int>> sharers = marked.ok() ? MarksIn(fs, directory, nonce) : marked;
  if (sharers.ok() && std::ranges::count(*sharers, ranks.rank()) == 0)
    sharers = IoError("{}: created, but its directory does not list it; keep local steps elsewhere", mark);
  const Status seen = Agree(ranks, sharers.status(), "local directories");
  if (status.ok()) (void)fs.RemoveFile(mark);
  CAIRN_RETURN_IF_ERROR(seen);
  return sharers;
}

Status CheckOutside(const std::string& run_dir, const std::string& directory) {
  if (!(CanonicalPath(directory) + "/").starts_with(CanonicalPath(run_dir) + "/")) return OkStatus();
  return InvalidArgument("{}: steps on the nodes cannot be in the run directory {}; choose another one",
                         directory, run_dir);
}

// The run directory as rank 0 sees it, from this host.
Result<LocalOwner> ShareOwner(const std::string& run_dir, const std::string& run, JobRanks& ranks) {
  const auto own = [&]() -> Result<std::string> {
    CAIRN_ASSIGN_OR_RETURN(const LocalOwner owner, OwnerOf(run_dir, run));
    return EncodeLocalOwner(owner);
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string text, FromRoot(ranks, "owner of local steps", own));
  CAIRN_ASSIGN_OR_RETURN(LocalOwner owner, DecodeLocalOwner(text));
  owner.host = HostName();
  return owner;
}

// True if another process holds it, this one does, or that is not known.
bool IsLocked(FileSystem& fs, const std::string& path) {
  Result<FileLock> lock = fs.OpenLock(path, FileLock::Missing::kError);
  if (!lock.ok()) return lock.status().kind() != StatusKind::kNotFound;
  const Result<bool> taken = lock->TryLock(FileLock::How::kExclusive);
  return !taken.ok() || !*taken;
}

// Removes leftovers of saves, memory of processes that were killed, and marks of sessions that were killed
// while they opened. Each rank of this session removes its own mark meanwhile. Call with the claim held.
Status Clean(FileSystem& fs, const std::string& directory, const Say& say) {
  CAIRN_RETURN_IF_ERROR(CleanLeftovers(
      fs, directory, [&](const Status& why) { say("leftover not removed: " + why.message()); }));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  for (const std::string& name : names) {
    const std::string path = JoinPath(directory, name);
    if (IsRankMark(name) || (IsMemoryName(name) && !IsLocked(fs, path)))
      CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, path));
  }
  return OkStatus();
}

Status Claim(FileSystem& fs, const LocalOwner& owner, double wait_seconds, LocalPlace& place,
             const Say& say) {
  const Stopwatch watch;
  Result<LocalClaim> claim = LocalClaim::Take(fs, place.run_dir, owner);
  while (claim.status().kind() == StatusKind::kAlreadyExists && watch.Seconds() < wait_seconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    claim = LocalClaim::Take(fs, place.run_dir, owner);
  }
  if (claim.status().kind() == StatusKind::kAlreadyExists) return IoError("{}", claim.status().message());
  CAIRN_RETURN_IF_ERROR(claim.status());
  place.claim = std::make_shared<const LocalClaim>(*std::move(claim));
  return Clean(fs, place.run_dir, say);
}

// What an earlier run directory of this path has left here: no later start uses it, or removes it.
void NameOthers(FileSystem& fs, const std::string& directory, const LocalOwner& owner, const Say& say) {
  const auto names = fs.List(directory);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const std::string other = JoinPath(directory, name);
    const Result<LocalOwner> found = ReadLocalOwner(fs, other);
    if (found.ok() && found->run_dir == owner.run_dir && found->run != owner.run)
      say(
          fmt::format("note: {} holds steps of a run directory that was at {} before; remove it if nobody "
                      "needs it",
                      other, owner.run_dir));
  }
}

// Why a lost node defeats the parity, and the largest groups that it would not.
std::string WarningOf(const std::string& said, const Redundancy& redundancy,
                      const std::vector<std::vector<int>>& groups, const std::vector<std::string>& nodes,
                      const JobRanks& job) {
  std::vector<int> shared;  // the most ranks of a group on one node
  for (const std::vector<int>& group : groups) {
    std::map<std::string, std::vector<int>> ranks_of_node;
    for (const int rank : group) ranks_of_node[nodes[rank]].push_back(rank);
    for (const auto& [node, ranks] : ranks_of_node)
      if (ranks.size() > shared.size()) shared = ranks;
  }
  std::string advice;
  for (int size = redundancy.group - 1; size > redundancy.parity && advice.empty(); --size) {
    const auto smaller = CutIntoGroups(nodes, {size, redundancy.parity});
    if (!smaller.ok() || LosableNodes(*smaller, nodes, redundancy.parity) == 0) continue;
    const bool is_xor = said.starts_with("xor");
    const size_t largest = std::ranges::max(*smaller, {}, &std::vector<int>::size).size();
    advice = fmt::format("; {}:{}{} would cover any node", is_xor ? "xor" : "rs", largest,
                         is_xor ? "" : fmt::format(",{}", redundancy.parity));
  }
  return fmt::format(
      "warning: the redundancy {} covers the loss of no node: {} ranks of a group share one, {} among "
      "them{}",
      said, shared.size(), job.NameOf(shared.front()), advice);
}

// Its group, and what that covers.
Status FindGroup(const std::string& said, const Redundancy& redundancy, JobRanks& ranks, LocalPlace& place,
                 const Say& say) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> nodes,
                         ShareAll(ranks, NodeId(), "nodes of the ranks"));
  CAIRN_ASSIGN_OR_RETURN(const auto groups, CutIntoGroups(nodes, redundancy));
  for (const std::vector<int>& group : groups)
    if (std::ranges::count(group, ranks.rank()) > 0) place.group = group;
  const int count = static_cast<int>(std::set(nodes.begin(), nodes.end()).size());
  const int losable = LosableNodes(groups, nodes, redundancy.parity);
  place.covers = losable > 0 ? fmt::format("any {} of {} nodes", losable, count)
                             : fmt::format("any {} of {} ranks", redundancy.parity, place.group.size());
  if (count == 1) place.covers += ", but not the only node";
  if (losable == 0 && count > 1 && ranks.rank() == 0) say(WarningOf(said, redundancy, groups, nodes, ranks));
  return OkStatus();
}

}  // namespace

Result<std::vector<std::vector<int>>> CutIntoGroups(const std::vector<std::string>& node_of_rank,
                                                    const Redundancy& redundancy) {
  const int world = static_cast<int>(node_of_rank.size());
  if (world <= redundancy.parity)
    return InvalidArgument("redundancy against the loss of {} ranks of a group needs more than {} ranks",
                           redundancy.parity, world);
  int count = (world + redundancy.group - 1) / redundancy.group;
  while (world / count <= redundancy.parity) --count;
  if ((world + count - 1) / count > kMaxCodeBlocks)
    return InvalidArgument("{} ranks cannot be cut into groups of {}", world, redundancy.group);
  // Node by node, each rank goes to the next group: no group gets more ranks of a node than necessary.
  std::map<std::string, int> first_rank;  // by node
  std::vector<std::pair<int, int>> order;
  for (int rank = 0; rank < world; ++rank)
    order.emplace_back(first_rank.try_emplace(node_of_rank[rank], rank).first->second, rank);
  std::ranges::sort(order);
  std::vector<std::vector<int>> groups(count);
  for (int i = 0; i < world; ++i) groups[i % count].push_back(order[i].second);
  for (std::vector<int>& group : groups) std::ranges::sort(group);
  return groups;
}

int LosableNodes(const std::vector<std::vector<int>>& groups, const std::vector<std::string>& node_of_rank,
                 int parity) {
  int fewest = static_cast<int>(node_of_rank.size());
  for (const std::vector<int>& group : groups) {
    std::map<std::string, int> of_node;
    for (const int rank : group) ++of_node[node_of_rank[rank]];
    std::vector<int> counts;
    for (const auto& [node, count] : of_node) counts.push_back(count);
    std::ranges::sort(counts, std::greater());
    int nodes = 0, lost = 0;
    for (const int count : counts) {
      if ((lost += count) > parity) break;
      ++nodes;
    }
    fewest = std::min(fewest, nodes);
  }
  return fewest;
}

std::string NewMemoryName() { return fmt::format("{}{}", kMemory, NewNonce()); }

bool IsMemoryName(std::string_view name) {
  return name.starts_with(kMemory) && IsHex(name.substr(kMemory.size()));
}

bool IsRankMark(std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!name.starts_with(kMark)) return false;
  name.remove_prefix(kMark.size());
  if (name.size() < kNonceDigits + 2 || name[kNonceDigits] != '-') return false;
  return IsHex(name.substr(0, kNonceDigits)) && std::ranges::all_of(name.substr(kNonceDigits + 1), is_digit);
}

Result<LocalPlace> OpenLocalPlace(FileSystem& fs, const LocalOptions& options, const std::string& run_dir,
                                  const std::string& run, const std::string& nonce, JobRanks& ranks,
                                  const Say& say) {
  CAIRN_ASSIGN_OR_RETURN(const Redundancy redundancy, ParseRedundancy(options.redundancy));
  const std::string directory = Replace(options.directory, "{rank}", std::to_string(ranks.rank()));
  LocalPlace place{.run_dir = JoinPath(directory, run),
                   .parity = redundancy.parity,
                   .keep_last = options.keep_last,
                   .claim = nullptr};
  CAIRN_RETURN_IF_ERROR(Agree(ranks, CheckOutside(run_dir, directory), "local directories"));
  CAIRN_ASSIGN_OR_RETURN(const LocalOwner owner, ShareOwner(run_dir, run, ranks));
  CAIRN_ASSIGN_OR_RETURN(place.sharers, FindSharers(fs, place.run_dir, owner, nonce, ranks));
  place.leader = place.sharers[0] == ranks.rank();
  CAIRN_RETURN_IF_ERROR(Agree(ranks,
                              place.leader ? Claim(fs, owner, options.wait_seconds, place, say) : OkStatus(),
                              "local directories"));
  if (ranks.rank() == 0) NameOthers(fs, directory, owner, say);
  if (redundancy.group > 0) {
    CAIRN_RETURN_IF_ERROR(FindGroup(options.redundancy, redundancy, ranks, place, say));
  }
  return place;
}

}  // namespace cairn
