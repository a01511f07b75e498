// RUN/.run is compared with the directory it lies in. Another inode or birth time: a copy. The same facts and
// path: the owner. The same facts at another path: renamed. Without birth times two disks may agree by
// chance; then the old path is checked, and if the run is still at it, this one is the copy.

#include "ckpt/run/run_identity.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/posix_error.h"
#include "ckpt/base/unix_nanoseconds.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"

namespace cairn {
namespace {

constexpr size_t kRunIdDigits = 32;
constexpr uint64_t kMaxBytes = 64 << 10;

struct Owner {
  std::string run;
  std::string path;
  DirectoryFacts facts;
  std::string copied_from = {};  // the run before; empty: none
};

// A path of any bytes as JSON text; what is not UTF-8 in it is replaced, and then names no directory.
std::string Encode(const Owner& owner) {
  nlohmann::ordered_json json = {{"run", owner.run},
                                 {"directory", owner.path},
                                 {"inode", owner.facts.inode},
                                 {"born_unix_nanoseconds", owner.facts.born_unix_nanoseconds}};
  if (!owner.copied_from.empty()) json["copied_from"] = owner.copied_from;
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Older versions wrote only the identity: its owner is unknown, so it is ignored.
Result<Owner> Decode(const std::string& text) {
  if (text.size() == kRunIdDigits + 1 && text.back() == '\n' && IsRunId(text.substr(0, kRunIdDigits)))
    return Owner{.run = text.substr(0, kRunIdDigits), .path = {}, .facts = {}};
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is = [&](const char* name, auto test) {
    return json.is_object() && json.contains(name) && (json[name].*test)();
  };
  using Json = nlohmann::json;
  if (!is("run", &Json::is_string) || !IsRunId(json["run"].get<std::string>()) ||
      !is("directory", &Json::is_string) || !is("inode", &Json::is_number_unsigned) ||
      !is("born_unix_nanoseconds", &Json::is_number_integer))
    return Corrupt("it is not the identity of a run; remove it, and the next training here begins a new run");
  return Owner{.run = json["run"],
               .path = json["directory"],
               .facts = {json["inode"], json["born_unix_nanoseconds"]},
               .copied_from = TextField(json, "copied_from")};
}

// Whether `path` is a run directory that bears the same identity: then the other one is the copy of it.
bool StillThere(FileSystem& fs, const Owner& owner, const DirectoryFacts& here) {
  const Result<DirectoryFacts> facts = FactsOfDirectory(owner.path);
  if (!facts.ok() || *facts == here) return false;
  const Result<std::string> text = ReadSmallFile(fs, JoinPath(owner.path, kRunName), kMaxBytes);
  const Result<Owner> other = text.ok() ? Decode(*text) : text.status();
  return other.ok() && other->run == owner.run;
}

Ownership Judge(FileSystem& fs, const Owner& owner, const std::string& path, const DirectoryFacts& here) {
  if (!(owner.facts == here)) return Ownership::kCopied;
  if (owner.path == path) return Ownership::kOwned;
  if (here.born_unix_nanoseconds != 0) return Ownership::kRenamed;
  // Another disk may have the same inode; without birth times only the old place tells a copy from a rename.
  return StillThere(fs, owner, here) ? Ownership::kCopied : Ownership::kRenamed;
}

Status WriteOwner(FileSystem& fs, const std::string& run_dir, const Owner& owner) {
  return ReplaceSmallFile(fs, JoinPath(run_dir, kRunName), Encode(owner));
}

}  // namespace

bool IsRunId(std::string_view text) { return text.size() == kRunIdDigits && IsHex(text); }

std::string NewRunId() {
  unsigned char bytes[kRunIdDigits / 2];
  (void)!::getrandom(bytes, sizeof(bytes), 0);
  std::string hex;
  for (const unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

Result<DirectoryFacts> FactsOfDirectory(const std::string& path) {
  struct statx st;
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_INO | STATX_BTIME, &st) != 0)
    return PosixError("find", path, errno);
  const bool born = (st.stx_mask & STATX_BTIME) != 0;
  return DirectoryFacts{st.stx_ino, born ? UnixNanoseconds(st.stx_btime.tv_sec, st.stx_btime.tv_nsec) : 0};
}

std::vector<std::string> RunsNamedAt(FileSystem& fs, const std::string& run_dir) {
  const Result<std::string> text = ReadSmallFile(fs, JoinPath(run_dir, kRunName), kMaxBytes);
  const Result<Owner> owner = text.ok() ? Decode(*text) : text.status();
  if (!owner.ok()) return {};
  return owner->copied_from.empty() ? std::vector{owner->run} : std::vector{owner->run, owner->copied_from};
}

Result<RunIdentity> IdentifyRun(FileSystem& fs, const std::string& run_dir) {
  const std::string file = JoinPath(run_dir, kRunName);
  const Result<std::string> text = ReadSmallFile(fs, file, kMaxBytes);
  if (!text.ok() && text.status().kind() == StatusKind::kNotFound) return RunIdentity{};
  CAIRN_RETURN_IF_ERROR(text.status());
  const Result<Owner> owner = Decode(*text);
  if (!owner.ok()) return owner.status().WithContext(file);
  if (owner->path.empty()) return RunIdentity{};
  CAIRN_ASSIGN_OR_RETURN(const DirectoryFacts here, FactsOfDirectory(run_dir));
  return RunIdentity{owner->run, Judge(fs, *owner, CanonicalPath(run_dir), here), owner->path};
}

Result<OwnedRun> OwnRun(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(RunIdentity before, IdentifyRun(fs, run_dir));
  OwnedRun owned{.run = before.owns() ? before.run : NewRunId(), .before = std::move(before)};
  if (owned.before.ownership == Ownership::kOwned) return owned;
  CAIRN_ASSIGN_OR_RETURN(const DirectoryFacts here, FactsOfDirectory(run_dir));
  std::vector<std::string> runs = RunsNamedAt(fs, run_dir);  // of a renamed run: it stays what it was
  if (owned.before.ownership == Ownership::kRenamed) runs.erase(runs.begin());
  runs.resize(1);
  CAIRN_RETURN_IF_ERROR(WriteOwner(fs, run_dir, {owned.run, CanonicalPath(run_dir), here, runs.front()}));
  return owned;
}

}  // namespace cairn
