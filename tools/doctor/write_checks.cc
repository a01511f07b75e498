// Facts that only writing shows. Every check has its own files, so that none depends on another.
#include <chrono>
#include <cstring>
#include <random>

#include "ckpt/base/stopwatch.h"
#include "ckpt/io/file_lock.h"
#include "ckpt/io/page_buffer.h"
#include "ckpt/io/past_cache_file.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/run/step_hold.h"
#include "tools/cli/human.h"
#include "tools/doctor/checks.h"

namespace cairn {
namespace {

constexpr uint64_t kProbeBytes = 1 << 20;
constexpr int64_t kSecond = 1'000'000'000;  // nanoseconds
constexpr double kEqualClocks = 5;          // seconds; caches and coarse times of files stay below it
constexpr std::string_view kOld = "old", kNew = "new";

// A check that could not be done. Without room nothing is known; a refusal has this severity.
Finding Failed(const Examined& examined, Finding row, const Status& status, Severity severity) {
  row.found = status.message();
  const std::string probe = examined.probe + "/";  // its name differs from host to host
  for (size_t at = row.found.find(probe); at != row.found.npos; at = row.found.find(probe))
    row.found.erase(at, probe.size());
  row.severity = status.kind() == StatusKind::kNoSpace ? Severity::kUnknown : severity;
  return row;
}

// No save here can be trusted.
Finding Unusable(const Examined& examined, Finding row, const Status& status, std::string meaning) {
  row.meaning = std::move(meaning);
  row.change = "do not save here until the file system is repaired";
  return Failed(examined, std::move(row), status, Severity::kLosesData);
}

PageBuffer RandomPages() {
  PageBuffer pages(kProbeBytes);
  std::mt19937_64 random{std::random_device()()};
  for (uint64_t at = 0; at < kProbeBytes; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(pages.data() + at, &word, sizeof word);
  }
  return pages;
}

std::span<const std::byte> BytesOf(PageBuffer& pages) { return {pages.data(), kProbeBytes}; }

// Whether the file has these bytes on its disk. Errors: Corrupt if it does not.
Status CheckBytes(FileSystem& fs, const std::string& path, std::span<const std::byte> expected) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenPastCache(fs, path));
  PageBuffer read(expected.size());
  CAIRN_RETURN_IF_ERROR(file->ReadAt(0, {read.data(), expected.size()}));
  return std::memcmp(read.data(), expected.data(), expected.size()) == 0
             ? OkStatus()
             : Corrupt("the bytes read differ from those written");
}

Status Has(FileSystem& fs, const std::string& path, std::string_view text) {
  CAIRN_ASSIGN_OR_RETURN(const std::string read, ReadSmallFile(fs, path, kProbeBytes));
  return read == text ? OkStatus() : Corrupt("{} has '{}' instead of '{}'", path, read, text);
}

Status WritePages(FileSystem& fs, const std::string& path, Direct direct, PageBuffer& pages) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Create(path, direct));
  CAIRN_RETURN_IF_ERROR(file->WriteAt(0, BytesOf(pages)));
  CAIRN_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// A file is replaced; an existing name is not taken; a directory gets its name.
Status TryReplace(FileSystem& fs, const std::string& probe) {
  const std::string path = JoinPath(probe, "replaced"), other = JoinPath(probe, "other");
  CAIRN_RETURN_IF_ERROR(ReplaceSmallFile(fs, path, kOld));
  CAIRN_RETURN_IF_ERROR(ReplaceSmallFile(fs, path, kNew));
  CAIRN_RETURN_IF_ERROR(Has(fs, path, kNew));
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, other, kOld));
  if (fs.RenameNew(other, path).kind() != StatusKind::kAlreadyExists)
    return Corrupt("a rename that must not replace a file did replace it");
  CAIRN_RETURN_IF_ERROR(Has(fs, path, kNew));
  const std::string partial = JoinPath(probe, "step.partial"), step = JoinPath(probe, "step");
  CAIRN_RETURN_IF_ERROR(fs.MakeDir(partial));
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, JoinPath(partial, "in"), kNew));
  CAIRN_RETURN_IF_ERROR(fs.RenameNew(partial, step));
  return Has(fs, JoinPath(step, "in"), kNew);
}

Status TryExchange(FileSystem& fs, const std::string& probe) {
  const std::string left = JoinPath(probe, "left"), right = JoinPath(probe, "right");
  for (const std::string& directory : {left, right}) CAIRN_RETURN_IF_ERROR(fs.MakeDir(directory));
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, JoinPath(left, "in"), kNew));
  CAIRN_RETURN_IF_ERROR(fs.Exchange(left, right));
  return Has(fs, JoinPath(right, "in"), kNew);
}

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Seconds by which the clock of this host is ahead of the one that dates files; 0 within the time of writing.
Result<double> SecondsAhead(FileSystem& fs, const std::string& path) {
  const int64_t before = Now();
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, path, kNew));
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  const int64_t after = Now(), dated = info.modified_unix_nanoseconds;
  const int64_t ahead = dated < before ? before - dated : dated > after ? after - dated : 0;
  return static_cast<double>(ahead) / kSecond;
}

}  // namespace

MarkedContents ProbeFiles() {
  return {.files = {"synced", "read-back", "replaced", "replaced.partial", "other", "step/", "step/in",
                    "step.partial/", "step.partial/in", "left/", "left/in", "right/", "right/in", "lock",
                    "clock", "transfers", "direct"}};
}

std::optional<Finding> CheckFsync(const Examined& examined) {
  Finding row{.name = "fsync", .found = "", .meaning = "what was synced survives a power loss"};
  row.measured = true;
  const std::string path = JoinPath(examined.probe, "synced");
  double file_seconds = 0, directory_seconds = 0;
  const auto timed = [](double& seconds, const Status& status, const Stopwatch& since) {
    seconds = since.Seconds();
    return status;
  };
  const Status status = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, examined.fs.Create(path));
    CAIRN_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(kNew))));
    CAIRN_RETURN_IF_ERROR(timed(file_seconds, file->Sync(), Stopwatch()));
    CAIRN_RETURN_IF_ERROR(file->Close());
    return timed(directory_seconds, examined.fs.SyncDir(examined.probe), Stopwatch());
  }();
  row.found = fmt::format("{:.1f} ms per small file, {:.1f} ms per directory", 1000 * file_seconds,
                          1000 * directory_seconds);
  return status.ok() ? row
                     : Unusable(examined, row, status, "a save cannot know that its bytes are on the disk");
}

std::optional<Finding> CheckReadBack(const Examined& examined) {
  Finding row{.name = "read back", .found = "equal, past the page cache", .meaning = "it proves a save"};
  const std::string path = JoinPath(examined.probe, "read-back");
  PageBuffer pages = RandomPages();
  Status status = WritePages(examined.fs, path, Direct::kAuto, pages);
  if (status.ok()) status = CheckBytes(examined.fs, path, BytesOf(pages));
  return status.ok() ? row : Unusable(examined, row, status, "what is saved here cannot be trusted");
}

std::optional<Finding> CheckReplace(const Examined& examined) {
  Finding row{.name = "rename",
              .found = "replaces a file only when asked to",
              .meaning = "a step is whole or does not exist"};
  const Status status = TryReplace(examined.fs, examined.probe);
  return status.ok() ? row : Unusable(examined, row, status, "a step cannot be published");
}

std::optional<Finding> CheckExchange(const Examined& examined) {
  Finding row{
      .name = "exchange", .found = "works", .meaning = "a step that is saved again exists at any moment"};
  const Status status = TryExchange(examined.fs, examined.probe);
  if (status.ok()) return row;
  if (status.kind() != StatusKind::kNotSupported) return Failed(examined, row, status, Severity::kWarning);
  row.found = "no RENAME_EXCHANGE";
  row.meaning = "a step that is saved again has no name during one rename; Cairn looks again";
  row.change = "a script of yours that looks for step-N must look again, too";
  return row;
}

std::optional<Finding> CheckLocks(const Examined& examined) {
  Finding row{.name = "locks",
              .found = "exclude others",
              .meaning = "one process at a time writes into a run or store"};
  const std::string path = JoinPath(examined.probe, "lock");
  const Result<bool> second = [&]() -> Result<bool> {
    CAIRN_ASSIGN_OR_RETURN(FileLock holder, examined.fs.OpenLock(path));
    CAIRN_ASSIGN_OR_RETURN(const bool held, holder.TryLock(FileLock::How::kExclusive));
    if (!held) return IoError("{}: this lock is refused although no process holds it", path);
    CAIRN_ASSIGN_OR_RETURN(FileLock other, examined.fs.OpenLock(path));
    return other.TryLock(FileLock::How::kExclusive);
  }();
  if (!second.ok() || *second) {
    row.meaning = "two trainings in one directory replace each other's steps";
    row.change = "mount it with locks (Lustre: flock), or let only one job write here";
    if (!second.ok()) return Failed(examined, row, second.status(), Severity::kLosesData);
    row.found = "two processes hold one exclusive lock";
    row.severity = Severity::kLosesData;
    return row;
  }
  const std::string local = LocalLocksIn(examined.mount);
  if (local.empty()) return row;
  row.found = "exclude others of this host";
  Worsen(row, "another host may write, too: " + local,
         "mount it with locks that all hosts share, or let only one job write here");
  return row;
}

std::optional<Finding> CheckClock(const Examined& examined) {
  Finding row{.name = "clock",
              .found = "as the file server's",
              .meaning = "ages of steps, holds and purges are right"};
  row.measured = true;
  const Result<double> ahead = SecondsAhead(examined.fs, JoinPath(examined.probe, "clock"));
  if (!ahead.ok()) return Failed(examined, row, ahead.status(), Severity::kUnknown);
  const double seconds = std::abs(*ahead);
  if (seconds < kEqualClocks) return row;
  row.found =
      fmt::format("{} {} the file server's", HumanSeconds(seconds), *ahead > 0 ? "ahead of" : "behind");
  Worsen(row, "ages of steps are wrong by that", "set the clock (chronyc tracking)");
  if (seconds < static_cast<double>(kAnnouncedSeconds)) return row;
  row.meaning = "a hold may look older than it is, and a purge may come before the archive expects it";
  row.severity = Severity::kLosesData;
  return row;
}

std::optional<Finding> CheckTransfers(const Examined& examined) {
  Finding row{.name = "io_uring", .found = "", .meaning = "several large transfers are in flight"};
  PageBuffer pages = RandomPages();
  const std::unique_ptr<IoQueue> queue = examined.fs.NewQueue();
  const Status status = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           examined.fs.Create(JoinPath(examined.probe, "transfers"), Direct::kAuto));
    queue->Write(*file, 0, BytesOf(pages), 0);
    CAIRN_RETURN_IF_ERROR(queue->Wait().status);
    return file->Close();
  }();
  if (!status.ok()) return Failed(examined, row, status, Severity::kWarning);
  row.found = queue->engine() == "io_uring" ? "works" : queue->engine();
  if (row.found == "works") return row;
  row.meaning = "threads do the transfers, at little cost";
  if (row.found.find("FUSE") != row.found.npos) return row;  // it would not be used here
  row.severity = Severity::kSlower;
  row.change = "allow io_uring (sysctl kernel.io_uring_disabled=0, the container's seccomp profile)";
  return row;
}

std::optional<Finding> CheckDirect(const Examined& examined) {
  Finding row{.name = "O_DIRECT", .found = "works", .meaning = "saves leave the page cache to others"};
  PageBuffer pages = RandomPages();
  const Status status = WritePages(examined.fs, JoinPath(examined.probe, "direct"), Direct::kOn, pages);
  if (status.ok()) return row;
  row.meaning = "saves go through the page cache; a proof asks the kernel to drop it";
  return Failed(examined, row, status, Severity::kSlower);
}

}  // namespace cairn
