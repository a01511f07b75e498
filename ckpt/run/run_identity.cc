// RUN/.run is compared with the directory it lies in. Another inode or birth time: a copy. The same facts and
// path: the owner. The same facts at another path: renamed, unless the run is still at the old path. Then
// this one is the copy: a clone of a file system (a snapshot, a copied image) keeps inodes and birth times.

#include "ckpt/run/run_identity.h"

#include <sys/random.h>

#include <nlohmann/json.hpp>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/digest.h"
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
               .facts = {.inode = json["inode"], .born_unix_nanoseconds = json["born_unix_nanoseconds"]},
               .copied_from = TextField(json, "copied_from")};
}

// Two paths of one directory: by a link, or by two mounts. Each mount may have a device of its own; then only
// what the holder of the run's lock wrote into it tells that it is the same one.
bool IsSame(FileSystem& fs, const std::string& a, const DirectoryFacts& facts_of_a, const std::string& b,
            const DirectoryFacts& facts_of_b) {
  if (!(facts_of_a == facts_of_b)) return false;
  if (facts_of_a.device == facts_of_b.device) return true;
  const auto holder = [&](const std::string& run) {
    return ReadSmallFile(fs, JoinPath(run, kLockName), kMaxBytes);
  };
  const Result<std::string> of_a = holder(a), of_b = holder(b);
  return of_a.ok() && of_b.ok() && !of_a->empty() && *of_a == *of_b;
}

// Whether the run is still at its old path, in another directory: then the one at `path` is the copy of it.
bool StillThere(FileSystem& fs, const Owner& owner, const std::string& path, const DirectoryFacts& here) {
  const Result<DirectoryFacts> facts = FactsOfDirectory(owner.path);
  if (!facts.ok() || IsSame(fs, owner.path, *facts, path, here)) return false;
  const Result<std::string> text = ReadSmallFile(fs, JoinPath(owner.path, kRunName), kMaxBytes);
  const Result<Owner> other = text.ok() ? Decode(*text) : text.status();
  return other.ok() && other->run == owner.run && other->facts == *facts;  // else that one is a copy
}

Ownership Judge(FileSystem& fs, const Owner& owner, const std::string& path, const DirectoryFacts& here) {
  if (!(owner.facts == here)) return Ownership::kCopied;
  if (owner.path == path) return Ownership::kOwned;
  return StillThere(fs, owner, path, here) ? Ownership::kCopied : Ownership::kRenamed;
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
