#include "tools/verify_record.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "convert/partial_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxRecordBytes = 64 << 10;

std::string PathOf(const std::string& step_directory) {
  const std::filesystem::path step =
      std::filesystem::path(step_directory).lexically_normal() / "";  // with a slash at the end, once
  const std::filesystem::path directory = step.parent_path();
  return (directory.parent_path() / "verified" / (directory.filename().string() + ".json")).string();
}

std::string DigestOfManifest(const Manifest& manifest) { return ToHex(DigestOf(EncodeManifest(manifest))); }

}  // namespace

Status WriteVerifyRecord(FileSystem& fs, const std::string& step_directory, const Manifest& manifest,
                         const VerifyRecord& record) {
  const std::string path = PathOf(step_directory);
  const nlohmann::ordered_json json = {{"manifest", DigestOfManifest(manifest)},
                                       {"unix_seconds", record.unix_seconds},
                                       {"checked", record.checked},
                                       {"bytes", record.bytes},
                                       {"problems", record.problems}};
  CAIRN_RETURN_IF_ERROR(fs.MakeDir(ParentDir(path)));
  const std::string fresh = path + "." + NewNonce();
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, fresh, json.dump(1) + "\n"));
  return fs.Rename(fresh, path);
}

std::optional<VerifyRecord> ReadVerifyRecord(FileSystem& fs, const std::string& step_directory,
                                             const Manifest& manifest) {
  const Result<std::string> text = ReadSmallFile(fs, PathOf(step_directory), kMaxRecordBytes);
  if (!text.ok()) return std::nullopt;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("manifest", nlohmann::json()) != DigestOfManifest(manifest))
    return std::nullopt;
  const auto checked = json.find("checked");
  return VerifyRecord{
      .unix_seconds = IntField(json, "unix_seconds"),
      .checked = checked != json.end() && checked->is_string() ? checked->get<std::string>() : "",
      .bytes = static_cast<uint64_t>(IntField(json, "bytes")),
      .problems = static_cast<uint64_t>(IntField(json, "problems"))};
}

}  // namespace cairn
