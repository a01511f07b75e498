// Ranks meet as those of a reshape do (rendezvous.h), in a directory that rank 0 makes: each leaves its rows.
// Rank 0 holds a lock there until all have left; a rank that gets it, too, shows that locks do not exclude
// other hosts.

#include "tools/doctor/doctor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/base/digest.h"
#include "ckpt/base/nonce.h"
#include "ckpt/base/this_process.h"
#include "ckpt/io/file_lock.h"
#include "ckpt/run/rendezvous.h"
#include "ckpt/step/partial_dir.h"
#include "tools/doctor/checks.h"

namespace cairn {
namespace {

// In the order of the page.
constexpr struct {
  bool writes;
  DoctorCheck* check;
} kChecks[] = {{true, CheckFsync},         {true, CheckReadBack},
               {true, CheckReplace},       {true, CheckLocks},
               {true, CheckClock},         {false, CheckFileSystem},
               {false, CheckNameCaches},   {true, CheckExchange},
               {true, CheckDirect},        {true, CheckTransfers},
               {false, CheckSpace},        {false, CheckInodes},
               {false, CheckQuota},        {false, CheckLustreTargets},
               {false, CheckAccessTimes},  {false, CheckDescriptors},
               {false, CheckLockedMemory}, {false, CheckProcesses},
               {false, CheckMemory},       {false, CheckHugePages},
               {false, CheckSharedMemory}, {false, CheckSlurm},
               {false, CheckMpi}};

constexpr std::string_view kTeamLock = "lock", kLocksRow = "locks";

// The directory of the probes. Errors: also if there is no room for their files; a probe that failed for want
// of room would not answer its own question.
Result<PartialDir> MakeProbe(FileSystem& fs, const std::string& path) {
  const MarkedContents contents = ProbeFiles();
  CAIRN_ASSIGN_OR_RETURN(PartialDir made, PartialDir::Make(fs, path, contents));
  std::vector<std::unique_ptr<File>> files;
  for (const std::string& name : contents.files) {
    if (name.find('/') != name.npos) continue;
    CAIRN_ASSIGN_OR_RETURN(files.emplace_back(), fs.Create(JoinPath(path, name)));
    CAIRN_RETURN_IF_ERROR(files.back()->Allocate(kPageBytes));
  }
  for (const std::unique_ptr<File>& file : files) {
    CAIRN_RETURN_IF_ERROR(file->Close());
    CAIRN_RETURN_IF_ERROR(fs.RemoveFile(file->path()));
  }
  return made;
}

Status CheckDirectory(FileSystem& fs, const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(directory));
  return info.is_directory() ? OkStatus()
                             : InvalidArgument("{} is not a directory; name one to save into", directory);
}

std::vector<Finding>::iterator LocksOf(HostReport& report) {
  return std::ranges::find(report.findings, kLocksRow, &Finding::name);
}

// Whether this process gets the lock that rank 0 holds. Errors: those of the disk.
Status CheckTeamLock(FileSystem& fs, const std::string& room, HostReport& own) {
  CAIRN_ASSIGN_OR_RETURN(FileLock lock, fs.OpenLock(JoinPath(room, kTeamLock), FileLock::Missing::kError));
  CAIRN_ASSIGN_OR_RETURN(const bool ours, lock.TryLock(FileLock::How::kShared));
  const auto row = LocksOf(own);
  if (!ours || row == own.findings.end()) return OkStatus();
  row->found = "do not exclude the host of rank 0";
  Worsen(*row, "trainings on two hosts replace each other's steps",
         "mount it with locks that all hosts share, or let only one job write here", Severity::kLosesData);
  return OkStatus();
}

Status HandOver(FileSystem& fs, const Rendezvous& rendezvous, const std::string& room, HostReport own) {
  CAIRN_RETURN_IF_ERROR(rendezvous.Begin());
  Status status = CheckTeamLock(fs, room, own);
  const nlohmann::ordered_json facts = {{"host", own.host}, {"findings", ToJson(own.findings)}};
  if (status.ok())
    status = rendezvous.GatherToRoot(facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
                 .status();
  if (!status.ok()) rendezvous.Fail(status);
  return status;
}

Result<HostReport> ReadFacts(const std::string& text, int rank) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("host") || !json["host"].is_string() || !json.contains("findings"))
    return Corrupt("rank {} did not leave a report", rank);
  CAIRN_ASSIGN_OR_RETURN(std::vector<Finding> findings, FindingsOf(json["findings"]));
  return HostReport{.host = json["host"], .ranks = {rank}, .findings = std::move(findings)};
}

// The rows of `report` that differ from those of `first`, or that it lacks.
std::vector<Finding> News(const HostReport& first, const HostReport& report) {
  std::vector<Finding> rows;
  for (const Finding& row : report.findings) {
    const auto known = std::ranges::find(first.findings, row.name, &Finding::name);
    if (known == first.findings.end() || Differs(*known, row)) rows.push_back(row);
  }
  return rows;
}

// If every rank of other hosts was excluded by the lock of rank 0, the mount options no longer matter.
void BelieveTeamLock(std::vector<HostReport>& reports) {
  const auto on_another = [&](const HostReport& report) { return report.host != reports[0].host; };
  const auto excluded = [](HostReport& report) {
    const auto row = LocksOf(report);
    return row != report.findings.end() && row->severity != Severity::kLosesData;
  };
  if (std::ranges::none_of(reports, on_another) || !std::ranges::all_of(reports, excluded)) return;
  for (HostReport& report : reports)
    *LocksOf(report) = {.name = std::string(kLocksRow),
                        .found = "exclude the hosts of this launch",
                        .meaning = "one process at a time writes into a run or store"};
}

bool AreEqual(const HostReport& a, const HostReport& b) {
  return a.host == b.host &&
         std::ranges::equal(a.findings, b.findings, [](const Finding& x, const Finding& y) {
           return x.name == y.name && !Differs(x, y);
         });
}

// The first report, and of the others those rows that differ from it; equal ones are joined.
std::vector<HostReport> OnlyNews(std::vector<HostReport> reports) {
  std::vector<HostReport> kept{std::move(reports[0])};
  for (size_t i = 1; i < reports.size(); ++i) {
    HostReport& report = reports[i];
    report.findings = News(kept[0], report);
    if (report.findings.empty()) continue;
    const auto known = std::find_if(kept.begin() + 1, kept.end(),
                                    [&](const HostReport& other) { return AreEqual(other, report); });
    if (known == kept.end())
      kept.push_back(std::move(report));
    else
      known->ranks.push_back(report.ranks[0]);
  }
  return kept;
}

}  // namespace

bool HostReport::LosesData() const {
  return std::ranges::find(findings, Severity::kLosesData, &Finding::severity) != findings.end();
}

// A killed doctor leaves its directory. The next one on this host removes it: the lock on its mark
// distinguishes it from one that runs, even if locks do not reach other hosts.
Result<HostReport> Examine(FileSystem& fs, const std::string& directory, const RankTeam& team) {
  CAIRN_RETURN_IF_ERROR(CheckDirectory(fs, directory));
  HostReport report{.host = HostName(), .ranks = {team.rank}, .findings = {}};
  const std::string name = JoinPath(directory, "cairn-doctor-" + report.host);
  RemoveLeftovers(fs, name);
  const std::string probe = PartialPrefix(name) + NewNonce();
  const Result<PartialDir> made = MakeProbe(fs, probe);
  if (!made.ok())
    report.findings.push_back({.name = "write",
                               .found = made.status().message(),
                               .meaning = "no save can succeed here",
                               .change = "choose a directory that can be written",
                               .severity = Severity::kLosesData});
  const Examined examined{
      .fs = fs, .directory = directory, .mount = MountOf(directory), .probe = made.ok() ? probe : ""};
  for (const auto& [writes, check] : kChecks)
    if (made.ok() || !writes)
      if (std::optional<Finding> row = check(examined)) report.findings.push_back(std::move(*row));
  return report;
}

Result<std::vector<HostReport>> Gather(FileSystem& fs, const std::string& directory, const RankTeam& team,
                                       HostReport own) {
  const std::string name = JoinPath(directory, "cairn-doctor-team");
  const std::string room = PartialPrefix(name) + ToHex(DigestOf(team.launch)).substr(0, kNonceDigits);
  std::vector<HostReport> reports;
  const Rendezvous rendezvous(fs, room, team);
  if (!team.leads()) {
    CAIRN_RETURN_IF_ERROR(HandOver(fs, rendezvous, room, std::move(own)));
    return reports;
  }
  reports.push_back(std::move(own));
  if (team.alone()) return reports;
  RemoveLeftovers(fs, name);
  CAIRN_ASSIGN_OR_RETURN(const PartialDir made,
                         PartialDir::Make(fs, room, {.step = true, .files = {std::string(kTeamLock)}}));
  CAIRN_ASSIGN_OR_RETURN(FileLock lock, fs.OpenLock(JoinPath(room, kTeamLock)));
  CAIRN_ASSIGN_OR_RETURN(const bool held, lock.TryLock(FileLock::How::kExclusive));
  if (!held) return IoError("{}: this lock is refused although no process holds it", lock.path());
  CAIRN_RETURN_IF_ERROR(rendezvous.Begin());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> facts, rendezvous.GatherToRoot(""));
  for (int rank = 1; rank < team.size; ++rank) {
    CAIRN_ASSIGN_OR_RETURN(HostReport report, ReadFacts(facts[rank], rank));
    reports.push_back(std::move(report));
  }
  BelieveTeamLock(reports);
  return OnlyNews(std::move(reports));
}

}  // namespace cairn
