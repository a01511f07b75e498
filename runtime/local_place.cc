#include "runtime/local_place.h"

#include <algorithm>
#include <map>

#include "ckpt/layout.h"
#include "ckpt/run_dir.h"
#include "runtime/process_info.h"
#include "runtime/rank_message.h"

namespace cairn {
namespace {

std::string Replace(std::string text, std::string_view what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

std::string MarkPrefix(const std::string& nonce) { return fmt::format(".rank-{}-", nonce); }

// The ranks whose marks are in the directory: those that find the same ones share it, on whatever hosts.
Result<std::vector<int>> MarksIn(FileSystem& fs, const std::string& directory, const std::string& nonce) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  const std::string prefix = MarkPrefix(nonce);
  std::vector<int> ranks;
  for (const std::string& name : names)
    if (name.starts_with(prefix)) ranks.push_back(std::atoi(name.c_str() + prefix.size()));
  std::ranges::sort(ranks);
  return ranks;
}

// Finds who shares this directory: every rank leaves a mark, and looks when all have.
Result<std::vector<int>> FindSharers(FileSystem& fs, const std::string& directory, const std::string& nonce,
                                     ControlPlane& control) {
  const std::string mark = JoinPath(directory, MarkPrefix(nonce) + std::to_string(control.rank()));
  Status status = MakeDirs(fs, directory);
  if (status.ok()) status = WriteSmallFile(fs, mark, "");
  const Status marked = Agree(control, status, "local directories");
  Result<std::vector<int>> ranks = marked.ok() ? MarksIn(fs, directory, nonce) : marked;
  const Status seen = Agree(control, ranks.status(), "local directories");
  if (status.ok()) (void)fs.RemoveFile(mark);
  CAIRN_RETURN_IF_ERROR(seen);
  return ranks;
}

// Leftovers of saves, and marks of sessions that were killed while they opened.
Status Clean(FileSystem& fs, const std::string& directory) {
  CAIRN_RETURN_IF_ERROR(CleanLeftovers(fs, directory));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  for (const std::string& name : names)
    if (name.starts_with(".rank-")) CAIRN_RETURN_IF_ERROR(fs.RemoveFile(JoinPath(directory, name)));
  return OkStatus();
}

// Which group each rank is in, agreed by all.
Result<std::vector<int>> FindGroup(const Redundancy& redundancy, ControlPlane& control) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                         control.GatherToRoot(HostName(), "hosts of the ranks"));
  std::string joined;
  for (const std::string& host : hosts) joined += host + "\n";
  CAIRN_ASSIGN_OR_RETURN(joined, control.BroadcastFromRoot(joined, "hosts of the ranks"));
  std::vector<std::string> host_of_rank;
  for (size_t at = 0, end; (end = joined.find('\n', at)) != std::string::npos; at = end + 1)
    host_of_rank.push_back(joined.substr(at, end - at));
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
        "redundancy that makes up for {} of a group needs more ranks than the {} there are",
        redundancy.parity, world);
  // In order of: how many ranks of its host come before it; so neighbours are of different hosts.
  std::map<std::string, int> seen;
  std::vector<std::pair<int, int>> order;
  for (int rank = 0; rank < world; ++rank) order.emplace_back(seen[host_of_rank[rank]]++, rank);
  std::ranges::sort(order);
  int count = (world + redundancy.group - 1) / redundancy.group;
  while (world / count <= redundancy.parity) --count;
  if ((world + count - 1) / count > kMaxCodeBlocks)
    return InvalidArgument("{} ranks do not divide into groups of {}", world, redundancy.group);
  std::vector<std::vector<int>> groups(count);
  for (int i = 0; i < world; ++i) groups[static_cast<int64_t>(i) * count / world].push_back(order[i].second);
  for (std::vector<int>& group : groups) std::ranges::sort(group);
  return groups;
}

Result<LocalPlace> OpenLocalPlace(FileSystem& fs, const LocalOptions& options, const std::string& run,
                                  const std::string& nonce, ControlPlane& control) {
  LocalPlace place{.run_dir = JoinPath(Replace(options.dir, "{rank}", std::to_string(control.rank())), run),
                   .parity = options.redundancy.parity,
                   .keep_last = options.keep_last};
  CAIRN_ASSIGN_OR_RETURN(place.sharers, FindSharers(fs, place.run_dir, nonce, control));
  place.leader = place.sharers[0] == control.rank();
  const Status cleaned = place.leader ? Clean(fs, place.run_dir) : OkStatus();
  CAIRN_RETURN_IF_ERROR(Agree(control, cleaned, "local directories"));
  if (options.redundancy.group > 0) {
    CAIRN_ASSIGN_OR_RETURN(place.group, FindGroup(options.redundancy, control));
  }
  return place;
}

}  // namespace cairn
