// All meetings are files in the partial directory, which every rank lists; each appears whole ("team-next-N"
// until then).
//
// A killed launch of the same name may have left its files there. So rank 0 calls: it replaces
// "team-call-WORD" again and again. A rank that sees the call change knows that rank 0 is alive. It answers
// with "team-hello-N-LAUNCH-WORD", whose word is its own random one and whose content is its host. When all
// have answered, "team-room-WORD" lists their words; a rank enters only a room that lists its word. No name
// is used twice: caches of names may be old.
//
// "team-ended-N" says that rank N has finished. "team-failed" holds the kind and the words of the first
// failure, and "team-left-N-KIND" says that rank N has failed or knows it. If the directory itself is gone,
// rank 0 has published, or has failed and removed it.

#include "ckpt/run/rank_team.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "ckpt/base/digest.h"
#include "ckpt/base/nonce.h"
#include "ckpt/base/short_list.h"
#include "ckpt/base/this_process.h"
#include "ckpt/io/fresh_names.h"
#include "ckpt/io/replace_file.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kCallPrefix = "team-call-", kHelloPrefix = "team-hello-",
                           kRoomPrefix = "team-room-";
constexpr std::string_view kFailedName = "team-failed";
constexpr uint64_t kMaxTextBytes = 1 << 20;
constexpr std::chrono::milliseconds kFirstPause{20}, kLastPause{500};
constexpr auto kCall = std::chrono::milliseconds(200);  // between two calls
constexpr std::chrono::seconds kDismissDeadline{30}, kDismissAfterNews{1};
constexpr std::chrono::seconds kLookAtFiles{1};

constexpr size_t kMaxNamedRanks = 8, kLaunchDigits = 8;
constexpr std::string_view kEndedPrefix = "team-ended-", kLeftPrefix = "team-left-";

Status Post(FileSystem& fs, const std::string& directory, const RankTeam& team, std::string_view name,
            std::string_view text) {
  return WriteAndRename(fs, JoinPath(directory, fmt::format("team-next-{:05}", team.rank)),
                        JoinPath(directory, name), text);
}

std::string EndedName(int rank) { return fmt::format("{}{:05}", kEndedPrefix, rank); }
std::string LeftName(int rank) { return fmt::format("{}{:05}", kLeftPrefix, rank); }

// Longer pauses in a long wait: every rank loads the file server.
void Pause(Clock::time_point since) {
  std::this_thread::sleep_for(
      std::clamp<Clock::duration>((Clock::now() - since) / 16, kFirstPause, kLastPause));
}

int Number(const char* text) {
  int value = -1;
  if (text != nullptr) std::from_chars(text, text + std::string_view(text).size(), value);
  return value;
}

// The size of what is in the directory.
struct Progress {
  size_t files = 0;
  uint64_t written = 0;  // see WrittenIn
  bool operator==(const Progress&) const = default;
};

// Changes if a file of the directory grows, or is written to.
uint64_t WrittenIn(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names) {
  uint64_t sum = 0;
  for (const std::string& name : names)
    if (const auto info = fs.Stat(JoinPath(directory, name)); info.ok())
      sum += info->bytes + static_cast<uint64_t>(info->modified_unix_seconds);
  return sum;
}

// The ranks but 0 for which no name begins so.
std::vector<int> MissingRanks(const std::vector<std::string>& names, const RankTeam& team,
                              const std::function<std::string(int rank)>& begin_of_name) {
  std::vector<int> missing;
  for (int rank = 1; rank < team.size; ++rank)
    if (std::ranges::none_of(names, [begin = begin_of_name(rank)](const std::string& name) {
          return name.starts_with(begin);
        }))
      missing.push_back(rank);
  return missing;
}

// The sum over the other ranks; all have finished.
Result<uint64_t> BytesReadBy(FileSystem& fs, const std::string& directory, const RankTeam& team) {
  uint64_t sum = 0;
  for (int rank = 1; rank < team.size; ++rank) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text,
                           ReadSmallFile(fs, JoinPath(directory, EndedName(rank)), kMaxTextBytes));
    uint64_t bytes = 0;
    std::from_chars(text.data(), text.data() + text.size(), bytes);
    sum += bytes;
  }
  return sum;
}

}  // namespace

std::optional<RankTeam> RankTeam::FromTorchrun(const GetEnv& get_env) {
  const int rank = Number(get_env("RANK")), size = Number(get_env("WORLD_SIZE"));
  const char* const id = get_env("TORCHELASTIC_RUN_ID");  // "none" unless the user names the launch
  if (size < 1 || rank < 0 || rank >= size || id == nullptr) return std::nullopt;
  RankTeam team{.rank = rank, .size = size, .launch = id};
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    if (const char* place = get_env(name)) team.launch += fmt::format(" {}", place);
  return team;
}

RankTeam RankTeam::FromEnvironment(const GetEnv& get_env) {
  struct Launcher {
    const char *rank, *size, *launch;
  };
  for (const Launcher& names : {Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"},
                                Launcher{"PMI_RANK", "PMI_SIZE", "PMI_JOBID"},
                                // Only srun sets the size of a step; a batch script by itself is one process.
                                Launcher{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"}}) {
    const int rank = Number(get_env(names.rank)), size = Number(get_env(names.size));
    if (size < 1 || rank < 0 || rank >= size) continue;
    RankTeam team{.rank = rank, .size = size};
    for (const char* name :
         {names.launch, "OMPI_MCA_ess_base_jobid", "PMI_PORT", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"})
      if (const char* id = get_env(name)) team.launch += fmt::format("{}={} ", name, id);
    // The batch job is the last resort: a job may launch several times.
    if (team.launch.empty()) team.launch = BatchJob(get_env);
    return team;
  }
  return {};
}

namespace {

Status CheckLaunch(const RankTeam& team) {
  if (!team.launch.empty()) return OkStatus();
  return InvalidArgument(
      "rank {} of {}: no variable names this launch; set PMI_JOBID for all ranks, to a different text for "
      "each launch (mpirun -genv PMI_JOBID $(date +%s))",
      team.rank, team.size);
}

std::string HelloPrefix(const RankTeam& team, int rank) {
  return fmt::format("{}{:05}-{}-", kHelloPrefix, rank,
                     ToHex(DigestOf(team.launch)).substr(0, kLaunchDigits));
}

std::string Named(int rank, std::string_view host) { return fmt::format("rank {} (host {})", rank, host); }

// "rank 3 (host n2), rank 17 and 2 more"; hosts of ranks that have answered rank 0 are known.
std::string NamesOf(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names,
                    const RankTeam& team, const std::vector<int>& ranks) {
  const auto named = [&](int rank) {
    for (const std::string& name : names)
      if (name.starts_with(HelloPrefix(team, rank)))
        if (const auto host = ReadSmallFile(fs, JoinPath(directory, name), kMaxTextBytes); host.ok())
          return Named(rank, *host);
    return fmt::format("rank {}", rank);
  };
  return ShortList(
      ranks.size(), [&](size_t i) { return named(ranks[i]); }, kMaxNamedRanks);
}

// The rank and the word of a name; 0: it is not an answer of this launch.
std::pair<int, std::string> ParseHello(const RankTeam& team, const std::string& name) {
  if (!name.starts_with(kHelloPrefix)) return {};
  int rank = 0;
  std::from_chars(name.data() + kHelloPrefix.size(), name.data() + name.size(), rank);
  const std::string prefix = HelloPrefix(team, rank);
  if (rank >= team.size || !name.starts_with(prefix)) return {};
  return {rank, name.substr(prefix.size())};
}

// Rank 0 calls until all ranks have answered. Returns their words, a line each.
Result<std::string> CallRanks(FileSystem& fs, const std::string& directory, const RankTeam& team) {
  std::string call;
  auto called = Clock::now() - kCall;
  const auto start = Clock::now();
  for (; Clock::now() - start < team.patience(); Pause(start)) {
    if (Clock::now() - called >= kCall) {
      const std::string next = fmt::format("{}{}", kCallPrefix, NewNonce());
      CAIRN_RETURN_IF_ERROR(Post(fs, directory, team, next, ""));
      if (!call.empty()) CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, JoinPath(directory, call)));
      call = next;
      called = Clock::now();
    }
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
    std::string words;
    std::set<int> answered;
    for (const std::string& name : names)
      if (const auto [rank, word] = ParseHello(team, name); rank > 0) {
        answered.insert(rank);
        words += word + "\n";
      }
    if (answered.size() + 1 == static_cast<size_t>(team.size)) return words;
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  const auto missing = MissingRanks(names, team, [&](int rank) { return HelloPrefix(team, rank); });
  return Aborted("{}: {} did not begin within {} s; see its message", directory,
                 NamesOf(fs, directory, names, team, missing), team.patience().count());
}

Clock::duration NamesStayOld(const RankTeam& team) { return std::min(kNamesStayOld, team.patience()); }

StatusKind KindIn(std::string_view number) {
  int kind = 0;
  std::from_chars(number.data(), number.data() + number.size(), kind);
  const bool known = kind > 0 && kind < static_cast<int>(StatusKind::kAborted);
  return known ? static_cast<StatusKind>(kind) : StatusKind::kAborted;
}

// What the file of the first failure says, if the names show one. A full disk leaves only empty files.
Status FailureIn(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names) {
  const auto left =
      std::ranges::find_if(names, [](const std::string& name) { return name.starts_with(kLeftPrefix); });
  const std::string failed = JoinPath(directory, kFailedName);
  if (left == names.end() && !std::ranges::binary_search(names, kFailedName)) return OkStatus();
  if (IsListed(fs, failed))
    if (const auto text = ReadSmallFile(fs, failed, kMaxTextBytes); text.ok())
      return {KindIn(*text), text->substr(text->find(' ') + 1)};
  if (left == names.end()) return OkStatus();  // the next listing will show it
  return {KindIn(left->substr(left->rfind('-') + 1)),
          fmt::format("rank {} failed; see its message", Number(left->c_str() + kLeftPrefix.size()))};
}

// The names in the team's directory; empty if it is gone and `published`. Errors: see CheckTeam().
Result<std::vector<std::string>> TeamNames(
    FileSystem& fs, const std::string& directory, const RankTeam& team,
    const std::function<bool()>& published = [] { return false; }) {
  for (const auto start = Clock::now();; Pause(start)) {
    CAIRN_RETURN_IF_ERROR(team.news().failed);
    Result<std::vector<std::string>> names = ListFresh(fs, directory);
    if (names.ok()) CAIRN_RETURN_IF_ERROR(FailureIn(fs, directory, *names));
    if (names.ok()) return names;
    if (published()) return std::vector<std::string>();
    if (Clock::now() - start < NamesStayOld(team)) continue;
    if (names.status().kind() != StatusKind::kNotFound) return names;
    return Aborted("{} is gone: rank 0 failed; see its message", directory);
  }
}

// A rank that waits for the room.
class Visitor {
 public:
  Visitor(FileSystem& fs, const std::string& directory, const RankTeam& team)
      : fs_(fs), directory_(directory), team_(team) {}

  // True: it may enter. Errors: Aborted if a rank that is alive has failed.
  Result<bool> Look() {
    CAIRN_RETURN_IF_ERROR(team_.news().failed);
    const Result<std::vector<std::string>> names = ListFresh(fs_, directory_);
    if (names.ok()) {
      for (const std::string& name : *names)
        if (name.starts_with(kRoomPrefix) && IsOurs(name)) return true;
      if (!team_.once) Answer(*names);
    }
    if (called_) CAIRN_RETURN_IF_ERROR(CheckTeam(fs_, directory_, team_));
    return false;
  }
  // When rank 0 was last heard.
  Clock::time_point heard() const { return heard_; }

 private:
  bool IsOurs(const std::string& room) const {
    const auto text = ReadSmallFile(fs_, JoinPath(directory_, room), kMaxTextBytes);
    if (!text.ok()) return false;
    return team_.once ? *text == team_.launch + "\n" : text->find(word_ + "\n") != text->npos;
  }
  void Answer(const std::vector<std::string>& names) {
    const bool first = calls_.empty();  // those a killed launch may have left
    bool called = false;
    for (const std::string& name : names)
      called |= name.starts_with(kCallPrefix) && calls_.insert(name).second && !first;
    if (!called) return;
    called_ = true;
    heard_ = Clock::now();
    const std::string hello = HelloPrefix(team_, team_.rank) + word_;
    if (std::ranges::find(names, hello) == names.end()) (void)Post(fs_, directory_, team_, hello, HostName());
  }

  FileSystem& fs_;
  const std::string& directory_;
  const RankTeam& team_;
  const std::string word_ = NewNonce() + NewNonce();
  std::set<std::string> calls_;
  bool called_ = false;  // by a rank 0 that is alive
  Clock::time_point heard_ = Clock::now();
};

}  // namespace

Status OpenTeamRoom(FileSystem& fs, const std::string& directory, const RankTeam& team) {
  CAIRN_RETURN_IF_ERROR(CheckLaunch(team));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  for (const std::string& name : names)
    if (IsTeamFileName(name)) CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, JoinPath(directory, name)));
  std::string text = team.launch + "\n";
  if (!team.once) {
    CAIRN_ASSIGN_OR_RETURN(text, CallRanks(fs, directory, team));
  }
  return Post(fs, directory, team, fmt::format("{}{}", kRoomPrefix, NewNonce()), text);
}

Status AwaitTeamRoom(FileSystem& fs, const std::string& directory, const RankTeam& team) {
  CAIRN_RETURN_IF_ERROR(CheckLaunch(team));
  Visitor visitor(fs, directory, team);
  for (const auto start = Clock::now(); Clock::now() - visitor.heard() < team.start_patience();
       Pause(start)) {
    CAIRN_ASSIGN_OR_RETURN(const bool open, visitor.Look());
    if (open) return OkStatus();
    if (const auto opened = team.news().opened; opened && Clock::now() - *opened > NamesStayOld(team))
      return Aborted("{}: rank 0 created it, but this host does not see it; is the same file system mounted?",
                     directory);
  }
  return Aborted("{}: rank 0 did not begin within {} s; see its message", directory,
                 team.start_patience().count());
}

Status CheckTeam(FileSystem& fs, const std::string& directory, const RankTeam& team) {
  return TeamNames(fs, directory, team).status();
}

void LeaveTeam(FileSystem& fs, const std::string& directory, const RankTeam& team, const Status& outcome,
               uint64_t bytes_read) {
  if (outcome.ok()) {
    if (!team.leads()) (void)Post(fs, directory, team, EndedName(team.rank), fmt::format("{}\n", bytes_read));
    return;
  }
  const int kind = static_cast<int>(outcome.kind());
  // The first failure is kept: this one may be only its consequence.
  if (!IsListed(fs, JoinPath(directory, kFailedName))) {
    const Status heard = team.news().failed;
    const std::string words =
        heard.ok() ? fmt::format("{} failed: {}", Named(team.rank, HostName()), outcome.message())
                   : heard.message();
    (void)Post(fs, directory, team, kFailedName, fmt::format("{} {}", kind, words));
  }
  (void)Post(fs, directory, team, fmt::format("{}-{}", LeftName(team.rank), kind), "");
}

Result<uint64_t> AwaitTeam(FileSystem& fs, const std::string& directory, const RankTeam& team) {
  Progress last;
  std::vector<std::string> names;
  const auto start = Clock::now();
  auto looked = start;  // at how much the files have grown
  for (auto since = start; Clock::now() - since < team.patience(); Pause(start)) {
    CAIRN_ASSIGN_OR_RETURN(names, TeamNames(fs, directory, team));
    if (MissingRanks(names, team, EndedName).empty()) {
      CAIRN_RETURN_IF_ERROR(CheckTeam(fs, directory, team));
      return BytesReadBy(fs, directory, team);
    }
    Progress now{names.size(), last.written};
    if (Clock::now() - looked > kLookAtFiles) {
      now.written = WrittenIn(fs, directory, names);
      looked = Clock::now();
    }
    if (!(now == last)) since = Clock::now();
    last = now;
  }
  return Aborted("{}: no rank made progress for {} s; not finished: {}", directory, team.patience().count(),
                 NamesOf(fs, directory, names, team, MissingRanks(names, team, EndedName)));
}

void DismissTeam(FileSystem& fs, const std::string& directory, const RankTeam& team) {
  const auto start = Clock::now();
  // A rank that can receive the news leaves at once.
  const auto deadline = [&] { return team.news().failed.ok() ? kDismissDeadline : kDismissAfterNews; };
  for (; Clock::now() - start < std::min(deadline(), team.patience()); Pause(start)) {
    const auto names = fs.List(directory);
    if (!names.ok() || MissingRanks(*names, team, LeftName).empty()) return;
  }
}

Status AwaitPublished(FileSystem& fs, const std::string& directory, const RankTeam& team,
                      const Patience& patience, const std::function<bool()>& published) {
  const auto is_published = [&] { return team.news().published || published(); };
  for (const auto start = Clock::now(); Clock::now() - start < patience(); Pause(start)) {
    if (is_published()) return OkStatus();
    if (const Status failed = TeamNames(fs, directory, team, is_published).status(); !failed.ok())
      return is_published() ? OkStatus() : failed;  // it was renamed in between
  }
  return Aborted("{}: rank 0 did not commit within {} s; see its message", directory, patience().count());
}

bool IsTeamFileName(std::string_view name) { return name.starts_with("team-"); }

}  // namespace cairn
