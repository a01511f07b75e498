#include "tools/seal/seal_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/base/glob.h"
#include "ckpt/base/sidecar_text.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/io/strict_json.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/plain_path.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr std::string_view kSealFormat = "cairn-seal";
constexpr int kSealVersion = 1;
constexpr uint64_t kMaxSealBytes = 512 << 20;

json EscapedList(const std::vector<std::string>& lines) {
  json list = json::array();
  for (const std::string& line : lines) list.push_back(EscapeName(line));
  return list;
}

Result<std::vector<std::string>> UnescapedList(const json& list) {
  std::vector<std::string> lines;
  for (const json& line : list) {
    CAIRN_ASSIGN_OR_RETURN(std::string text, UnescapeName(line.get<std::string>()));
    lines.push_back(std::move(text));
  }
  return lines;
}

Result<SealedFile> DecodeSealedFile(const json& in) {
  SealedFile file;
  CAIRN_ASSIGN_OR_RETURN(file.name, UnescapeName(in.at("name").get<std::string>()));
  if (!IsPlainPath(file.name)) return Corrupt("it names a file outside of its directory: {:.100}", file.name);
  file.bytes = in.at("bytes").get<uint64_t>();
  file.modified_unix_seconds = in.at("modified").get<int64_t>();
  const auto digest = ParseHex(in.at("xxh3").get<std::string>());
  if (!digest) return Corrupt("{} has no digest", file.name);
  file.digest = *digest;
  return file;
}

Result<Seal> DecodeFields(const json& root) {
  Seal seal;
  seal.system = root.at("system").get<std::string>();
  if (root.contains("step")) seal.step = root["step"].get<int64_t>();
  seal.sealed_unix_seconds = root.at("sealed").get<int64_t>();
  for (const json& in : root.at("files")) {
    CAIRN_ASSIGN_OR_RETURN(SealedFile file, DecodeSealedFile(in));
    seal.files.push_back(std::move(file));
  }
  CAIRN_ASSIGN_OR_RETURN(seal.whole, UnescapedList(root.at("whole")));
  CAIRN_ASSIGN_OR_RETURN(seal.untold, UnescapedList(root.at("untold")));
  CAIRN_ASSIGN_OR_RETURN(seal.problems, UnescapedList(root.at("problems")));
  CAIRN_ASSIGN_OR_RETURN(seal.notes, UnescapedList(root.value("notes", json::array())));
  CAIRN_ASSIGN_OR_RETURN(seal.allowed, UnescapedList(root.value("allowed", json::array())));
  return seal;
}

}  // namespace

uint64_t Seal::bytes() const {
  uint64_t sum = 0;
  for (const SealedFile& file : files) sum += file.bytes;
  return sum;
}

std::vector<std::string> UncheckedIn(const Seal& seal, const std::vector<std::string>& allow) {
  constexpr const char* kUnchecked = "unchecked";
  const bool allowed = FitsAnyGlob(kUnchecked, allow) || FitsAnyGlob(kUnchecked, seal.allowed);
  return allowed ? std::vector<std::string>() : seal.untold;
}

std::string EncodeSeal(const Seal& seal) {
  json files = json::array();
  for (const SealedFile& file : seal.files)
    files.push_back({{"name", EscapeName(file.name)},
                     {"bytes", file.bytes},
                     {"modified", file.modified_unix_seconds},
                     {"xxh3", ToHex(file.digest)}});
  json root = {{"format", kSealFormat},
               {"version", kSealVersion},
               {"system", seal.system},
               {"sealed", seal.sealed_unix_seconds},
               {"files", std::move(files)},
               {"whole", EscapedList(seal.whole)},
               {"untold", EscapedList(seal.untold)},
               {"problems", EscapedList(seal.problems)}};
  if (seal.step) root["step"] = *seal.step;
  if (!seal.notes.empty()) root["notes"] = EscapedList(seal.notes);
  if (!seal.allowed.empty()) root["allowed"] = EscapedList(seal.allowed);
  return SignedSidecarText(std::move(root));
}

Result<Seal> DecodeSeal(std::string_view text) {
  CAIRN_ASSIGN_OR_RETURN(json root, ParseStrictJson(text));
  if (!root.is_object() || root.value("format", json()) != kSealFormat)
    return Corrupt("this is not the seal of a directory");
  if (root.value("version", json()) != kSealVersion)
    return NotSupported("it is a seal of version {}, but this program knows version {}; use a newer cairn",
                        root.value("version", json()).dump(), kSealVersion);
  root.erase("digest");
  if (SignedSidecarText(root) != text)
    return Corrupt(
        "the seal is not what was written: its digest differs; cairn seal --again makes a new one");
  try {
    return DecodeFields(root);
  } catch (const json::exception&) {
    return Corrupt("the seal lacks a field, or a field has the wrong type");
  }
}

Result<Seal> ReadSeal(FileSystem& fs, const std::string& directory) {
  const std::string path = JoinPath(directory, kSealName);
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, kMaxSealBytes));
  Result<Seal> seal = DecodeSeal(text);
  if (!seal.ok()) return seal.status().WithContext(path);
  return seal;
}

Status WriteSealFile(FileSystem& fs, const std::string& directory, const Seal& seal) {
  return ReplaceSmallFile(fs, JoinPath(directory, kSealName), EncodeSeal(seal));
}

}  // namespace cairn
