// All messages are files in the directory, which every rank lists; each appears whole ("team-next-N" until
// then).
//
// A killed launch of the same name may have left its files there. So rank 0 calls: it replaces
// "team-call-WORD" again and again. A rank that sees the call change knows that rank 0 is alive. It answers
// with "team-hello-N-LAUNCH-WORD", whose word is its own random one and whose content is its host. When all
// have answered, "team-room-WORD" lists their words; a rank enters only a room that lists its word. No name
// is used twice: caches of names may be old.
//
// "team-ended-N" says that rank N has finished, and holds what it leaves for rank 0. "team-failed" holds the
// kind and the words of the first failure, and "team-left-N-KIND" says that rank N has failed or knows it. If
// the directory itself is gone, rank 0 has published, or has failed and removed it.

#include "ckpt/run/rendezvous.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ckpt/base/backoff.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/nonce.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/base/short_list.h"
#include "ckpt/base/this_process.h"
#include "ckpt/io/fresh_names.h"
#include "ckpt/io/replace_file.h"

namespace cairn {
namespace {

constexpr std::string_view kCallPrefix = "team-call-", kHelloPrefix = "team-hello-",
                           kRoomPrefix = "team-room-", kEndedPrefix = "team-ended-",
                           kLeftPrefix = "team-left-";
constexpr std::string_view kFailedName = "team-failed";
constexpr uint64_t kMaxTextBytes = 1 << 20, kMaxBlobBytes = uint64_t{1} << 32;
constexpr std::chrono::milliseconds kCall{200};  // between two calls
constexpr std::chrono::seconds kDismissDeadline{30}, kDismissAfterNews{1};
constexpr std::chrono::seconds kLookAtFiles{1};
constexpr size_t kMaxNamedRanks = 8, kLaunchDigits = 8;

std::string EndedName(int rank) { return fmt::format("{}{:05}", kEndedPrefix, rank); }
std::string LeftName(int rank) { return fmt::format("{}{:05}", kLeftPrefix, rank); }
std::string HelloPrefix(const RankTeam& team, int rank) {
  return fmt::format("{}{:05}-{}-", kHelloPrefix, rank,
                     ToHex(DigestOf(team.launch)).substr(0, kLaunchDigits));
}

std::string Named(int rank, std::string_view host) { return fmt::format("rank {} (host {})", rank, host); }

int NumberIn(std::string_view text) { return TakeNumber<int>(text).value_or(0); }

StatusKind KindIn(std::string_view number) {
  const int kind = NumberIn(number);
  const bool known = kind > 0 && kind < static_cast<int>(StatusKind::kAborted);
  return known ? static_cast<StatusKind>(kind) : StatusKind::kAborted;
}

// The rank and the word of a name; 0: it is not an answer of this launch.
std::pair<int, std::string> ParseHello(const RankTeam& team, const std::string& name) {
  if (!name.starts_with(kHelloPrefix)) return {};
  const int rank = NumberIn(name.substr(kHelloPrefix.size()));
  const std::string prefix = HelloPrefix(team, rank);
  if (rank >= team.size || !name.starts_with(prefix)) return {};
  return {rank, name.substr(prefix.size())};
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

// Whether rank 0 has called since the last look. The calls of the first look may be those of a killed launch.
bool HasCalled(const std::vector<std::string>& names, std::set<std::string>& seen) {
  const bool first = seen.empty();
  bool called = false;
  for (const std::string& name : names)
    called |= name.starts_with(kCallPrefix) && seen.insert(name).second && !first;
  return called;
}

// Changes if a file of the directory grows, or is written to.
uint64_t WrittenIn(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names) {
  uint64_t sum = 0;
  for (const std::string& name : names)
    if (const auto info = fs.Stat(JoinPath(directory, name)); info.ok())
      sum += info->bytes + static_cast<uint64_t>(info->modified_unix_seconds);
  return sum;
}

Backoff::Clock::duration NamesStayOld(const RankTeam& team) {
  return std::min<Backoff::Clock::duration>(kNamesStayOld, team.patience());
}

}  // namespace

Status Rendezvous::Post(std::string_view name, std::string_view text) const {
  return WriteAndRename(fs_, JoinPath(directory_, fmt::format("team-next-{:05}", team_.rank)),
                        JoinPath(directory_, name), text);
}

Status Rendezvous::Begin() const {
  if (team_.alone()) return OkStatus();
  if (team_.launch.empty())
    return InvalidArgument(
        "rank {} of {}: no variable names this launch; set PMI_JOBID for all ranks, to a different text for "
        "each launch (mpirun -genv PMI_JOBID $(date +%s))",
        team_.rank, team_.size);
  if (!team_.leads()) return Enter();
  CAIRN_ASSIGN_OR_RETURN(const Names names, fs_.List(directory_));
  for (const std::string& name : names)
    if (IsTeamFileName(name)) CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs_, JoinPath(directory_, name)));
  std::string text = team_.launch + "\n";
  if (!team_.once) {
    CAIRN_ASSIGN_OR_RETURN(text, CallRanks());
  }
  return Post(fmt::format("{}{}", kRoomPrefix, NewNonce()), text);
}

// Rank 0 calls until all ranks have answered. Returns their words, a line each.
Result<std::string> Rendezvous::CallRanks() const {
  std::string call;
  auto called = Backoff::Clock::now() - kCall;
  Names names;
  for (Backoff backoff; backoff.elapsed() < team_.patience(); backoff.Pause()) {
    if (Backoff::Clock::now() - called >= kCall) {
      const std::string next = fmt::format("{}{}", kCallPrefix, NewNonce());
      CAIRN_RETURN_IF_ERROR(Post(next, ""));
      if (!call.empty()) CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs_, JoinPath(directory_, call)));
      call = next;
      called = Backoff::Clock::now();
    }
    CAIRN_ASSIGN_OR_RETURN(names, fs_.List(directory_));
    std::string words;
    std::set<int> answered;
    for (const std::string& name : names)
      if (const auto [rank, word] = ParseHello(team_, name); rank > 0) {
        answered.insert(rank);
        words += word + "\n";
      }
    if (answered.size() + 1 == static_cast<size_t>(team_.size)) return words;
  }
  const auto missing = MissingRanks(names, team_, [&](int rank) { return HelloPrefix(team_, rank); });
  return Aborted("{}: {} did not begin within {} s; see its message", directory_, NamesOf(names, missing),
                 team_.patience().count());
}

Status Rendezvous::Enter() const {
  const std::string word = NewNonce() + NewNonce(), hello = HelloPrefix(team_, team_.rank) + word;
  std::set<std::string> calls;
  bool called = false;  // by a rank 0 that is alive
  for (Backoff backoff; backoff.elapsed() < team_.start_patience(); backoff.Pause()) {
    CAIRN_RETURN_IF_ERROR(team_.news().failed);
    if (const Result<Names> names = ListFresh(fs_, directory_); names.ok()) {
      if (std::ranges::any_of(*names, [&](const std::string& name) { return IsOurRoom(name, word); }))
        return OkStatus();
      if (!team_.once && HasCalled(*names, calls)) {
        called = true;
        backoff.Renew();
        if (std::ranges::find(*names, hello) == names->end()) (void)Post(hello, HostName());
      }
    }
    if (called) CAIRN_RETURN_IF_ERROR(Check());
    if (const auto opened = team_.news().opened;
        opened && Backoff::Clock::now() - *opened > NamesStayOld(team_))
      return Aborted("{}: rank 0 created it, but this host does not see it; is the same file system mounted?",
                     directory_);
  }
  return Aborted("{}: rank 0 did not begin within {} s; see its message", directory_,
                 team_.start_patience().count());
}

bool Rendezvous::IsOurRoom(const std::string& name, const std::string& word) const {
  if (!name.starts_with(kRoomPrefix)) return false;
  const auto text = ReadSmallFile(fs_, JoinPath(directory_, name), kMaxTextBytes);
  if (!text.ok()) return false;
  return team_.once ? *text == team_.launch + "\n" : text->find(word + "\n") != text->npos;
}

Status Rendezvous::Check() const { return team_.alone() ? team_.news().failed : ListOrFail().status(); }

// The names in the directory; none if it is gone and `published`. Errors: see Check().
Result<Rendezvous::Names> Rendezvous::ListOrFail(const std::function<bool()>& published) const {
  for (Backoff backoff;; backoff.Pause()) {
    CAIRN_RETURN_IF_ERROR(team_.news().failed);
    Result<Names> names = ListFresh(fs_, directory_);
    if (names.ok()) CAIRN_RETURN_IF_ERROR(FailureIn(*names));
    if (names.ok()) return names;
    if (published()) return Names();
    if (backoff.elapsed() < NamesStayOld(team_)) continue;
    if (names.status().kind() != StatusKind::kNotFound) return names;
    return Aborted("{} is gone: rank 0 failed; see its message", directory_);
  }
}

// The words in the file of the first failure, if the names show one. On a full disk only empty files are
// left.
Status Rendezvous::FailureIn(const Names& names) const {
  const auto left =
      std::ranges::find_if(names, [](const std::string& name) { return name.starts_with(kLeftPrefix); });
  const std::string failed = JoinPath(directory_, kFailedName);
  if (left == names.end() && !std::ranges::binary_search(names, kFailedName)) return OkStatus();
  if (IsListed(fs_, failed))
    if (const auto text = ReadSmallFile(fs_, failed, kMaxTextBytes); text.ok())
      return {KindIn(*text), text->substr(text->find(' ') + 1)};
  if (left == names.end()) return OkStatus();  // the next listing will show it
  return {KindIn(left->substr(left->rfind('-') + 1)),
          fmt::format("rank {} failed; see its message", NumberIn(left->substr(kLeftPrefix.size())))};
}

void Rendezvous::Fail(const Status& why) const {
  if (team_.alone()) return;
  const int kind = static_cast<int>(why.kind());
  // The first failure is kept: this one may be only its consequence.
  if (!IsListed(fs_, JoinPath(directory_, kFailedName))) {
    const Status heard = team_.news().failed;
    const std::string words = heard.ok()
                                  ? fmt::format("{} failed: {}", Named(team_.rank, HostName()), why.message())
                                  : heard.message();
    (void)Post(kFailedName, fmt::format("{} {}", kind, words));
  }
  (void)Post(fmt::format("{}-{}", LeftName(team_.rank), kind), "");
}

void Rendezvous::Dismiss() const {
  // A rank that can receive the news leaves at once.
  const auto deadline = [&] { return team_.news().failed.ok() ? kDismissDeadline : kDismissAfterNews; };
  for (Backoff backoff; backoff.elapsed() < std::min(deadline(), team_.patience()); backoff.Pause()) {
    const auto names = fs_.List(directory_);
    if (!names.ok() || MissingRanks(*names, team_, LeftName).empty()) return;
  }
}

Result<std::vector<std::string>> Rendezvous::GatherToRoot(std::string blob) const {
  if (!team_.leads()) {
    CAIRN_RETURN_IF_ERROR(Post(EndedName(team_.rank), blob));
    return std::vector<std::string>();
  }
  if (!team_.alone()) CAIRN_RETURN_IF_ERROR(AwaitOthers());
  std::vector<std::string> blobs{std::move(blob)};
  for (int rank = 1; rank < team_.size; ++rank) {
    CAIRN_ASSIGN_OR_RETURN(std::string text,
                           ReadSmallFile(fs_, JoinPath(directory_, EndedName(rank)), kMaxBlobBytes));
    blobs.push_back(std::move(text));
  }
  return blobs;
}

Status Rendezvous::AwaitOthers() const {
  Names names;
  size_t files = 0;
  uint64_t written = 0;
  Backoff backoff, looked;  // `looked`: at how much the files have grown
  for (; backoff.elapsed() < team_.patience(); backoff.Pause()) {
    CAIRN_ASSIGN_OR_RETURN(names, ListOrFail());
    if (MissingRanks(names, team_, EndedName).empty()) return Check();
    const size_t files_before = std::exchange(files, names.size());
    const uint64_t written_before = written;
    if (looked.elapsed() > kLookAtFiles) {
      written = WrittenIn(fs_, directory_, names);
      looked.Renew();
    }
    if (files != files_before || written != written_before) backoff.Renew();
  }
  return Aborted("{}: no rank made progress for {} s; not finished: {}", directory_, team_.patience().count(),
                 NamesOf(names, MissingRanks(names, team_, EndedName)));
}

// "rank 3 (host n2), rank 17 and 2 more"; hosts of ranks that have answered rank 0 are known.
std::string Rendezvous::NamesOf(const Names& names, const std::vector<int>& ranks) const {
  const auto named = [&](int rank) {
    for (const std::string& name : names)
      if (name.starts_with(HelloPrefix(team_, rank)))
        if (const auto host = ReadSmallFile(fs_, JoinPath(directory_, name), kMaxTextBytes); host.ok())
          return Named(rank, *host);
    return fmt::format("rank {}", rank);
  };
  return ShortList(
      ranks.size(), [&](size_t i) { return named(ranks[i]); }, kMaxNamedRanks);
}

Status Rendezvous::AwaitPublished(const Patience& patience, const std::function<bool()>& published) const {
  const auto is_published = [&] { return team_.news().published || published(); };
  for (Backoff backoff; backoff.elapsed() < patience(); backoff.Pause()) {
    if (is_published()) return OkStatus();
    if (const Status failed = ListOrFail(is_published).status(); !failed.ok())
      return is_published() ? OkStatus() : failed;  // it was renamed in between
  }
  return Aborted("{}: rank 0 did not commit within {} s; see its message", directory_, patience().count());
}

bool IsTeamFileName(std::string_view name) { return name.starts_with("team-"); }

}  // namespace cairn
