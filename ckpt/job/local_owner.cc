#include "ckpt/job/local_owner.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/this_process.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxBytes = 64 << 10;
constexpr const char* kRemedy = "keep local steps elsewhere, or remove this directory if nobody needs it";

}  // namespace

Result<LocalOwner> ReadLocalOwner(FileSystem& fs, const std::string& directory) {
  const Result<std::string> text = ReadSmallFile(fs, JoinPath(directory, kLocalOwnerName), kMaxBytes);
  const Result<LocalOwner> owner = text.ok() ? DecodeLocalOwner(*text) : text.status();
  if (owner.ok()) return owner;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, directory));
  if (steps.empty()) return NotFound("{} is new", directory);
  return IoError("{} holds steps, but no {} names their owner; {}", directory, kLocalOwnerName, kRemedy);
}

Result<LocalOwner> OwnerOf(const std::string& run_dir, const std::string& run) {
  CAIRN_ASSIGN_OR_RETURN(const DirectoryFacts facts, FactsOfDirectory(run_dir));
  return LocalOwner{.run = run, .run_dir = CanonicalPath(run_dir), .facts = facts, .host = HostName()};
}

std::string EncodeLocalOwner(const LocalOwner& owner) {
  const nlohmann::ordered_json json = {{"run", owner.run},
                                       {"run_directory", owner.run_dir},
                                       {"inode", owner.facts.inode},
                                       {"born_unix_nanoseconds", owner.facts.born_unix_nanoseconds},
                                       {"host", owner.host}};
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<LocalOwner> DecodeLocalOwner(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    return LocalOwner{
        .run = json.at("run"),
        .run_dir = json.at("run_directory"),
        .facts = {.inode = json.at("inode"), .born_unix_nanoseconds = json.at("born_unix_nanoseconds")},
        .host = json.at("host")};
  } catch (const nlohmann::json::exception&) {
    return Corrupt("not the owner of local steps");
  }
}

Status CheckLocalOwner(FileSystem& fs, const std::string& directory, const LocalOwner& owner) {
  const Result<FileInfo> info = fs.LinkStat(directory);
  if (!info.ok()) return info.status().kind() == StatusKind::kNotFound ? OkStatus() : info.status();
  if (info->kind != FileKind::kDirectory)
    return IoError("{} is a link or a file, not a directory; {}", directory, kRemedy);
  // /dev/shm is everybody's, and a training trusts what it finds in its own directory there.
  if (fs.HasOtherProcesses() && info->user != ::geteuid())
    return IoError("{} belongs to another user, number {}; {}", directory, info->user, kRemedy);
  const Result<LocalOwner> found = ReadLocalOwner(fs, directory);
  if (!found.ok()) return found.status().kind() == StatusKind::kNotFound ? OkStatus() : found.status();
  if (found->Is(owner)) return OkStatus();
  return IoError("{} belongs to the run directory {} (host {}), of which {} is a copy; {}", directory,
                 found->run_dir, found->host, owner.run_dir, kRemedy);
}

Result<LocalClaim> LocalClaim::Take(FileSystem& fs, const std::string& directory, const LocalOwner& owner) {
  const std::string path = JoinPath(directory, kLocalOwnerName);
  CAIRN_RETURN_IF_ERROR(CheckLocalOwner(fs, directory, owner));
  CAIRN_ASSIGN_OR_RETURN(FileLock file, fs.OpenLock(path));
  CAIRN_ASSIGN_OR_RETURN(const bool ours, file.TryLock(FileLock::How::kExclusive));
  if (!ours) return AlreadyExists("another training uses {}", directory);
  CAIRN_RETURN_IF_ERROR(CheckLocalOwner(fs, directory, owner));  // under the lock: nobody writes it now
  // Durable before the first step: after a crash the text is whole, or no step exists.
  if (!ReadLocalOwner(fs, directory).ok()) {
    CAIRN_RETURN_IF_ERROR(file.WriteText(EncodeLocalOwner(owner)));
    CAIRN_RETURN_IF_ERROR(fs.SyncDir(directory));
  }
  return LocalClaim(std::move(file));
}

}  // namespace cairn
