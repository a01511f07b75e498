// A record is read, changed and replaced under a lock on its directory (if the file system has locks). Many
// checks saw the files in the same state: such lists are stored once, and checks refer to them by index. A
// record that cannot be decoded counts as missing, but that of a later version is never replaced; one without
// a version is decoded in its old form.

#include "tools/check/verify_record.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "ckpt/io/file_lock.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr uint64_t kMaxVerifyRecordBytes = 64 << 20;
constexpr int kRecordVersion = 2;

std::string PathOf(const std::string& step_directory) {
  const std::filesystem::path step =
      std::filesystem::path(step_directory).lexically_normal() / "";  // with one slash at the end
  const std::filesystem::path directory = step.parent_path();
  return (directory.parent_path() / kVerifiedName / (directory.filename().string() + ".json")).string();
}

std::string DigestOfManifest(const Manifest& manifest) { return ToHex(DigestOf(EncodeManifest(manifest))); }

// Held while a record is read, changed and replaced. nullopt if the file system has no locks.
std::optional<FileLock> LockDirectory(FileSystem& fs, const std::string& directory) {
  Result<FileLock> lock = fs.OpenLock(directory, FileLock::Missing::kError);
  if (!lock.ok() || !lock->Lock(FileLock::How::kExclusive).ok()) return std::nullopt;
  return std::move(*lock);
}

// Lists of files are shared: most checks saw the same files.
using FileLists = std::vector<std::vector<CheckedFile>>;

size_t IndexOf(FileLists& lists, const std::vector<CheckedFile>& files) {
  const auto found = std::ranges::find(lists, files);
  if (found != lists.end()) return found - lists.begin();
  lists.push_back(files);
  return lists.size() - 1;
}

ordered_json WithFiles(const Check& check, FileLists& lists) {
  ordered_json out = ToJson(check);
  if (!check.files.empty()) out["files"] = IndexOf(lists, check.files);
  if (check.kind != CheckKind::kSample) return out;
  out["seed"] = check.seed;
  out["chunks"] = check.chunks;
  out["ranges"] = ordered_json::array();
  for (const CheckedRange& range : check.ranges)
    out["ranges"].push_back(ordered_json::array({range.file, range.begin, range.end}));
  return out;
}

std::string Encode(const Manifest& manifest, const std::vector<Check>& checks) {
  FileLists lists;
  ordered_json list = ordered_json::array(), files = ordered_json::array();
  for (const Check& check : checks) list.push_back(WithFiles(check, lists));
  for (const std::vector<CheckedFile>& looks : lists) {
    ordered_json as_they_looked = ordered_json::array();
    for (const CheckedFile& file : looks)
      as_they_looked.push_back({{"name", file.name},
                                {"bytes", file.bytes},
                                {"modified_unix_nanoseconds", file.modified_unix_nanoseconds},
                                {"changed_unix_nanoseconds", file.changed_unix_nanoseconds},
                                {"inode", file.inode}});
    files.push_back(std::move(as_they_looked));
  }
  const ordered_json record = {{"version", kRecordVersion},
                               {"manifest", DigestOfManifest(manifest)},
                               {"checks", std::move(list)},
                               {"files", std::move(files)}};
  return record.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

// An old record: one check with all its kinds in one text, "structure, every byte".
std::vector<Check> DecodeOld(const json& record, const Manifest& manifest) {
  const auto text = record.find("checked");
  if (text == record.end() || !text->is_string()) return {};
  std::vector<Check> checks;
  for (const CheckKind kind : kAllCheckKinds)
    if (text->get<std::string>().find(Name(kind)) != std::string::npos)
      checks.push_back({.kind = kind,
                        .unix_seconds = IntField(record, "unix_seconds"),
                        .bytes = static_cast<uint64_t>(IntField(record, "bytes")),
                        .of_bytes = manifest.bytes(),
                        .problems = static_cast<uint64_t>(IntField(record, "problems"))});
  return checks;
}

Check DecodeCheck(const json& in, const FileLists& lists) {
  Check check;
  const auto kind = std::ranges::find(kAllCheckKinds, in.at("checked").get<std::string>(),
                                      [](CheckKind k) { return std::string(Name(k)); });
  if (kind == std::end(kAllCheckKinds)) throw std::out_of_range("kind");
  check.kind = *kind;
  check.unix_seconds = in.at("unix_seconds").get<int64_t>();
  check.bytes = in.at("bytes").get<uint64_t>();
  check.of_bytes = in.at("of_bytes").get<uint64_t>();
  check.problems = in.at("problems").get<uint64_t>();
  check.first_problems = in.at("first_problems").get<std::vector<std::string>>();
  if (in.contains("files")) check.files = lists.at(in["files"].get<size_t>());
  if (check.kind != CheckKind::kSample) return check;
  check.seed = in.at("seed").get<uint64_t>();
  check.chunks = in.at("chunks").get<uint64_t>();
  for (const json& range : in.at("ranges"))
    check.ranges.push_back(
        {range.at(0).get<std::string>(), range.at(1).get<uint64_t>(), range.at(2).get<uint64_t>()});
  return check;
}

FileLists DecodeFiles(const json& in) {
  FileLists lists;
  for (const json& looks : in) {
    lists.emplace_back();
    for (const json& file : looks)
      lists.back().push_back({file.at("name").get<std::string>(), file.at("bytes").get<uint64_t>(),
                              file.at("modified_unix_nanoseconds").get<int64_t>(),
                              file.at("changed_unix_nanoseconds").get<int64_t>(),
                              file.at("inode").get<uint64_t>()});
  }
  return lists;
}

std::vector<Check> Decode(const std::string& text, const Manifest& manifest) {
  const json record = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || record.value("manifest", json()) != DigestOfManifest(manifest)) return {};
  if (!record.contains("version")) return DecodeOld(record, manifest);
  try {
    const FileLists lists = DecodeFiles(record.at("files"));
    std::vector<Check> checks;
    for (const json& check : record.at("checks")) checks.push_back(DecodeCheck(check, lists));
    return checks;
  } catch (const std::exception&) {  // not ours, or of a later version
    return {};
  }
}

bool IsOfLaterVersion(const std::string& text) {
  const json record = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return record.is_object() && IntField(record, "version") > kRecordVersion;
}

}  // namespace

ordered_json ToJson(const Check& check) {
  return {{"checked", Name(check.kind)}, {"unix_seconds", check.unix_seconds},
          {"bytes", check.bytes},        {"of_bytes", check.of_bytes},
          {"problems", check.problems},  {"first_problems", check.first_problems}};
}

std::vector<CheckedFile> StatFiles(FileSystem& fs, const std::string& step_directory,
                                   const Manifest& manifest) {
  std::vector<CheckedFile> files;
  for (const ManifestFile& file : manifest.files) {
    const auto info = fs.Stat(JoinPath(manifest.DirectoryOf(step_directory, file.name), file.name));
    if (info.ok())
      files.push_back({file.name, info->bytes, info->modified_unix_nanoseconds,
                       info->changed_unix_nanoseconds, info->inode});
  }
  return files;
}

Result<std::vector<Check>> AddToVerifyRecord(FileSystem& fs, const std::string& step_directory,
                                             const Manifest& manifest, const std::vector<Check>& checks) {
  const std::string path = PathOf(step_directory);
  CAIRN_RETURN_IF_ERROR(fs.MakeDir(ParentDir(path)));
  const std::optional<FileLock> lock = LockDirectory(fs, ParentDir(path));
  const Result<std::string> text = ReadSmallFile(fs, path, kMaxVerifyRecordBytes);
  if (text.ok() && IsOfLaterVersion(*text))
    return NotSupported("{}: a later version of Cairn wrote this record; verify with that version", path);
  std::vector<Check> all = text.ok() ? Decode(*text, manifest) : std::vector<Check>{};
  for (const Check& check : checks) AddCheck(all, check);
  CAIRN_RETURN_IF_ERROR(ReplaceSmallFile(fs, path, Encode(manifest, all)));
  return all;
}

Result<std::vector<Check>> RecordChecks(FileSystem& fs, const std::string& step_directory,
                                        const Manifest& manifest, const std::vector<CheckedFile>& files,
                                        std::vector<Check> checks) {
  for (Check& check : checks) {
    check.unix_seconds = std::time(nullptr);
    check.of_bytes = manifest.bytes();
    check.files = files;
  }
  return AddToVerifyRecord(fs, step_directory, manifest, checks);
}

std::vector<Check> ReadVerifyRecord(FileSystem& fs, const std::string& step_directory,
                                    const Manifest& manifest) {
  const Result<std::string> text = ReadSmallFile(fs, PathOf(step_directory), kMaxVerifyRecordBytes);
  return text.ok() ? Decode(*text, manifest) : std::vector<Check>{};
}

}  // namespace cairn
