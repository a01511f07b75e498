// Every agreement is a flock, which the kernel drops when a process dies. A process that gets the store's
// lock exclusively prepares the store and writes the launch's name into .team; others share the lock if .team
// names their launch. A process takes a source by locking its claim, and writes the result into the claim
// before it unlocks it: a claim that is free and has no result is work to do. The process that gets the
// exclusive lock again is the last, and moves all results into .team.

#include "tools/archive/schedule/team.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "ckpt/base/backoff.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/io/fresh_names.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr std::string_view kAloneName = "alone", kRoomName = "room";  // locks, without content
constexpr std::string_view kRankPrefix = "rank-";  // an empty file for each process that has joined
constexpr uint64_t kMaxTeamBytes = 256 << 20;
constexpr std::chrono::seconds kJoinDeadline{120};    // for a peer that prepares the store
constexpr std::chrono::seconds kStrangerDeadline{2};  // for a peer that has not written .team yet

int64_t Now() { return std::time(nullptr); }

std::optional<int64_t> NumberOf(const char* text) {
  return text == nullptr ? std::nullopt : ParseNumber<int64_t>(text, 0);
}

json ShareToJson(const ShareResult& r) {
  return {{"stored_bytes", r.stored_bytes},
          {"stored_members", r.stored_members},
          {"started", r.started_unix_seconds},
          {"finished", r.finished_unix_seconds},
          {"failures", r.failures}};
}

std::optional<ShareResult> ShareFromJson(const json& j) {
  try {
    return ShareResult{j.at("stored_bytes"), j.at("stored_members"), j.at("started"), j.at("finished"),
                       j.at("failures")};
  } catch (const json::exception&) {  // written by a process that was killed meanwhile
    return std::nullopt;
  }
}

// {"launch": ..., "done": {claim: result}, "ranks": {name: true}}; nullopt if it belongs to another launch.
std::optional<json> TeamOf(const Store& store, const std::string& launch) {
  if (!IsListed(store.fs(), store.Path(kTeamName))) return std::nullopt;
  const auto text = ReadSmallFile(store.fs(), store.Path(kTeamName), kMaxTeamBytes);
  json team = text.ok() ? json::parse(*text, nullptr, /*allow_exceptions=*/false) : json();
  const bool ours = team.is_object() && team.contains("launch") && team["launch"] == launch &&
                    team.contains("done") && team["done"].is_object();
  return ours ? std::optional(std::move(team)) : std::nullopt;
}

json ReadTeam(const Store& store, const std::string& launch) {
  return TeamOf(store, launch).value_or(json{{"launch", launch}, {"done", json::object()}});
}

Status RemoveClaims(const Store& store) {
  const std::string claims = store.Path(kTeamClaimsName);
  return IsListed(store.fs(), claims) ? RemoveTree(store.fs(), claims) : OkStatus();
}

// Moves the results that processes of `launch` wrote into their claims into .team; returns that.
Result<json> Gather(const Store& store, const std::string& launch) {
  FileSystem& fs = store.fs();
  json team = ReadTeam(store, launch);
  const std::string claims = store.Path(kTeamClaimsName);
  std::vector<std::string> names;
  if (IsListed(fs, claims)) {
    CAIRN_ASSIGN_OR_RETURN(names, fs.List(claims));
  }
  for (const std::string& name : names) {
    if (name.starts_with(kRankPrefix)) team["ranks"][name] = true;
    CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, JoinPath(claims, name), kMaxTeamBytes));
    json result = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (ShareFromJson(result)) team["done"][name] = std::move(result);
  }
  CAIRN_RETURN_IF_ERROR(
      ReplaceSmallFile(fs, store.Path(kTeamName), team.dump(-1, ' ', false, json::error_handler_t::replace)));
  CAIRN_RETURN_IF_ERROR(RemoveClaims(store));
  return team;
}

std::string RankName(const RankTeam& team) { return fmt::format("{}{}", kRankPrefix, team.rank); }

// A launcher may use a name again, but no process of a launch joins twice. Tasks of an array may, because its
// name is unique.
bool IsSameLaunch(const Store& store, const RankTeam& team) {
  const std::optional<json> known = TeamOf(store, team.launch);
  if (!known || team.once) return known.has_value();
  const std::string rank = RankName(team);
  return !known->value("ranks", json::object()).contains(rank) &&
         !IsListed(store.fs(), JoinPath(store.Path(kTeamClaimsName), rank));
}

// Says that this process has joined, for IsSameLaunch().
Status NoteRank(const Store& store, const RankTeam& team) {
  const Status noted = WriteSmallFile(store.fs(), JoinPath(store.Path(kTeamClaimsName), RankName(team)), "");
  return noted.kind() == StatusKind::kAlreadyExists ? OkStatus() : noted;
}

// Continues with the earlier results of the same launch; another launch starts from nothing.
Status StartTeam(const Store& store, const RankTeam& team) {
  if (team.alone() || !IsSameLaunch(store, team)) {
    CAIRN_RETURN_IF_ERROR(RemoveClaims(store));
    CAIRN_RETURN_IF_ERROR(RemoveIfThere(store.fs(), store.Path(kTeamName)));
    if (team.alone()) return OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(Gather(store, team.launch).status());
  return store.fs().MakeDir(store.Path(kTeamClaimsName));
}

}  // namespace

Result<RankTeam> ArchiveTeam(const std::function<const char*(const char*)>& get_env) {
  RankTeam team = RankTeam::FromEnvironment(get_env);
  const auto count = NumberOf(get_env("SLURM_ARRAY_TASK_COUNT"));
  const auto task = NumberOf(get_env("SLURM_ARRAY_TASK_ID"));
  if (count && task && *count > 1) {
    const int64_t first = NumberOf(get_env("SLURM_ARRAY_TASK_MIN")).value_or(0);
    const int64_t step = std::max<int64_t>(1, NumberOf(get_env("SLURM_ARRAY_TASK_STEP")).value_or(1));
    const int64_t index = (*task - first) / step;
    if (*task < first || (*task - first) % step != 0 || index >= *count)
      return InvalidArgument(
          "task {} of a Slurm array of {} is not in a plain range; submit it with --array=0-{}", *task,
          *count, *count - 1);
    const char* job = get_env("SLURM_ARRAY_JOB_ID");
    team.rank += static_cast<int>(index) * team.size;
    team.size *= static_cast<int>(*count);
    // Not the name of the ranks' own step, which differs for each task.
    team.launch = job == nullptr ? "" : fmt::format("SLURM_ARRAY_JOB_ID={}", job);
    team.once = true;
  }
  if (!team.alone() && team.launch.empty())
    return InvalidArgument(
        "the launcher does not name its job, so this launch cannot be distinguished from another; run one "
        "process, or use a Slurm array");
  return team;
}

Result<TeamStore> TeamStore::Join(const Store& store, const RankTeam& team,
                                  const std::function<Status()>& prepare) {
  CAIRN_ASSIGN_OR_RETURN(LockFile lock, LockFile::Open(store.fs(), store.Path(kLockName)));
  for (Backoff backoff;; backoff.Pause()) {
    CAIRN_ASSIGN_OR_RETURN(const bool alone, lock.TryLock(FileLock::How::kExclusive));
    if (alone) {
      CAIRN_RETURN_IF_ERROR(StartTeam(store, team));
      CAIRN_RETURN_IF_ERROR(prepare());
    } else if (team.alone()) {
      return StoreIsBusy(store, lock);
    }
    if (team.alone()) return TeamStore(store, team, std::move(lock));
    CAIRN_ASSIGN_OR_RETURN(const bool shared, lock.TryLock(FileLock::How::kShared));
    const bool ours = TeamOf(store, team.launch).has_value();
    if (shared && ours) {
      CAIRN_RETURN_IF_ERROR(NoteRank(store, team));
      return TeamStore(store, team, std::move(lock));
    }
    if (shared || backoff.elapsed() > (ours ? kJoinDeadline : kStrangerDeadline))
      return StoreIsBusy(store, lock);
  }
}

std::vector<size_t> TeamStore::Order(size_t count) const {
  std::vector<size_t> order, others;
  for (size_t i = 0; i < count; ++i)
    (i % team_.size == static_cast<size_t>(team_.rank) ? order : others).push_back(i);
  order.insert(order.end(), others.begin(), others.end());
  return order;
}

Result<FileLock> TeamStore::OpenClaim(std::string_view name) const {
  return store_.fs().OpenLock(JoinPath(store_.Path(kTeamClaimsName), name));
}

Result<bool> TeamStore::Share(const std::string& key, const std::function<ShareResult()>& work) {
  if (team_.alone()) {
    CAIRN_RETURN_IF_ERROR(lock_.CheckHolder());
    (void)work();
    return true;
  }
  // Not a name of an earlier launch: a host may have cached that it exists.
  const std::string claim = ToHex(DigestOf(fmt::format("{}\n{}", team_.launch, key)));
  const json team = ReadTeam(store_, team_.launch);  // from before this process joined
  if (team["done"].contains(claim)) return false;
  CAIRN_ASSIGN_OR_RETURN(FileLock lock, OpenClaim(claim));
  CAIRN_ASSIGN_OR_RETURN(const bool locked, lock.TryLock(FileLock::How::kExclusive));
  if (!locked) return false;
  const auto said = ReadSmallFile(store_.fs(), lock.path(), kMaxTeamBytes);
  if (said.ok() && ShareFromJson(json::parse(*said, nullptr, /*allow_exceptions=*/false))) return false;
  const int64_t started = Now();
  ShareResult result = work();
  result.started_unix_seconds = started;
  result.finished_unix_seconds = Now();
  CAIRN_RETURN_IF_ERROR(
      lock.WriteText(ShareToJson(result).dump(-1, ' ', false, json::error_handler_t::replace)));
  return true;
}

Status TeamStore::Alone(const std::function<Status()>& work) {
  if (team_.alone()) return work();
  CAIRN_ASSIGN_OR_RETURN(FileLock lock, OpenClaim(kAloneName));
  CAIRN_RETURN_IF_ERROR(lock.Lock(FileLock::How::kExclusive));
  return work();
}

Status TeamStore::TakingRoom(const std::function<bool()>& all_fit, const std::function<Status()>& work) {
  if (team_.alone()) return work();
  CAIRN_ASSIGN_OR_RETURN(FileLock lock, OpenClaim(kRoomName));
  CAIRN_RETURN_IF_ERROR(lock.Lock(FileLock::How::kShared));
  if (!all_fit()) CAIRN_RETURN_IF_ERROR(lock.Lock(FileLock::How::kExclusive));
  return work();
}

Result<bool> TeamStore::IsLast() {
  if (team_.alone()) {
    CAIRN_RETURN_IF_ERROR(lock_.CheckHolder());
    return true;
  }
  return lock_.TryLock(FileLock::How::kExclusive);
}

Result<std::vector<ShareResult>> TeamStore::Collect() {
  std::vector<ShareResult> results;
  if (team_.alone()) return results;
  CAIRN_ASSIGN_OR_RETURN(const json team, Gather(store_, team_.launch));
  for (const auto& [name, said] : team["done"].items())
    if (const auto result = ShareFromJson(said)) results.push_back(*result);
  return results;
}

}  // namespace cairn
