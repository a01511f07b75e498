#include "tools/archive/record.h"

#include <algorithm>

#include "ckpt/file_system.h"
#include "ckpt/layout.h"
#include "convert/strict_json.h"
#include "tools/archive/sidecar.h"
#include "tools/archive/tar_index.h"
#include "tools/archive/tar_pieces.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr int kRecordVersion = 2;
constexpr int kPiecesVersion = 3;    // of a tar in pieces, which older programs would take for a damaged one
constexpr size_t kDigestDigits = 8;  // of the manifest's digest, in a tar's name
constexpr std::string_view kFormNames[] = {"full", "weights-fp16", "files"};
constexpr std::string_view kFormMarks[] = {"", ".fp16", ".files"};  // in a tar's name

json ToJson(const ArchivedFile& file) {
  json entry = {{"name", file.name},
                {"bytes", file.bytes},
                {"sha256", file.sha256},
                {"offset", file.offset},
                {"stored_bytes", file.stored_bytes}};
  if (file.packed) entry["packed"] = true;
  return entry;
}

ArchivedFile FileFromJson(const json& entry) {
  return {.name = entry.at("name"),
          .bytes = entry.at("bytes"),
          .sha256 = entry.at("sha256"),
          .offset = entry.at("offset"),
          .stored_bytes = entry.at("stored_bytes"),
          .packed = entry.contains("packed")};
}

json WithoutDigest(const ArchiveRecord& r) {
  json files = json::array();
  for (const ArchivedFile& file : r.files) files.push_back(ToJson(file));
  json root = {{"format", "cairn-archive"},
               {"version", r.pieces.empty() ? kRecordVersion : kPiecesVersion},
               {"name", r.name},
               {"run", r.run},
               {"step", r.step},
               {"directory", r.directory},
               {"tokens", r.tokens},
               {"saved_unix_seconds", r.saved_unix_seconds},
               {"form", Name(r.form)},
               {"manifest_digest", r.manifest_digest},
               {"source", r.source},
               {"tar_bytes", r.tar_bytes},
               {"verified_unix_seconds", r.verified_unix_seconds},
               {"files", std::move(files)}};
  if (!r.derived_from.empty()) root["derived_from"] = r.derived_from;
  for (size_t i = 0; i < r.pieces.size(); ++i)
    root["pieces"].push_back({{"name", TarPieceName(TarName(r), i + 1)}, {"bytes", r.pieces[i]}});
  if (!r.bundle.empty()) root["bundle"] = {{"name", r.bundle}, {"offset", r.bundle_offset}};
  if (!r.parity.name.empty()) root["parity"] = {{"name", r.parity.name}, {"bytes", r.parity.bytes}};
  return root;
}

// json::at and get throw; DecodeRecord turns that into one Status.
ArchiveRecord FromJson(const json& root) {
  ArchiveRecord r;
  r.name = root.at("name");
  r.run = root.at("run");
  r.step = root.at("step");
  r.directory = root.at("directory");
  r.tokens = root.at("tokens");
  r.saved_unix_seconds = root.at("saved_unix_seconds");
  const std::string form = root.at("form");
  r.form = static_cast<Form>(std::ranges::find(kFormNames, form) - std::begin(kFormNames));
  r.manifest_digest = root.at("manifest_digest");
  r.derived_from = root.value("derived_from", "");
  r.source = root.at("source");
  r.tar_bytes = root.at("tar_bytes");
  r.verified_unix_seconds = root.at("verified_unix_seconds");
  if (root.contains("pieces"))
    for (const json& piece : root["pieces"]) r.pieces.push_back(piece.at("bytes"));
  if (root.contains("bundle")) {
    r.bundle = root["bundle"].at("name");
    r.bundle_offset = root["bundle"].at("offset");
  }
  if (root.contains("parity")) r.parity = {root["parity"].at("name"), root["parity"].at("bytes")};
  for (const json& file : root.at("files")) r.files.push_back(FileFromJson(file));
  return r;
}

// Names become paths.
Status CheckNames(const ArchiveRecord& record) {
  const bool tree = record.form == Form::kFiles;
  for (const ArchivedFile& file : record.files)
    if (tree ? !IsPlainPath(file.name) : !IsPlainFileName(file.name))
      return Corrupt("names a file '{}'", file.name);
  if (!IsPlainFileName(record.name) || !IsPlainPath(record.directory) || record.manifest_digest.size() != 32)
    return Corrupt("names its run '{}' in '{}'", record.name, record.directory);
  if (!record.bundle.empty() && !IsPlainFileName(record.bundle))
    return Corrupt("names '{}' as its bundle", record.bundle);
  if (!record.parity.name.empty() && record.parity.name != TarName(record) + std::string(kParitySuffix))
    return Corrupt("names '{}' as its parity", record.parity.name);
  return OkStatus();
}

// Together they are the tar, and every file lies in one of them.
Status CheckPieces(const ArchiveRecord& record) {
  if (record.pieces.empty()) return OkStatus();
  uint64_t left = record.tar_bytes;
  for (const uint64_t bytes : record.pieces) {
    if (bytes == 0 || bytes > left) return Corrupt("has pieces of other sizes than the tar");
    left -= bytes;
  }
  if (left > 0 || !record.bundle.empty()) return Corrupt("has pieces of other sizes than the tar");
  for (const ArchivedFile& file : record.files) {
    uint64_t offset = file.offset;
    size_t i = 0;
    for (; i < record.pieces.size() && offset >= record.pieces[i]; ++i) offset -= record.pieces[i];
    if (i == record.pieces.size() || file.stored_bytes > record.pieces[i] - offset)
      return Corrupt("{} lies in no piece", file.name);
  }
  return OkStatus();
}

}  // namespace

std::string_view Name(Form form) { return kFormNames[static_cast<int>(form)]; }

std::string StoredName(const ArchivedFile& file) {
  return file.packed ? file.name + std::string(kPackedSuffix) : file.name;
}

ArchiveRecord RecordOf(const Manifest& manifest, std::string name) {
  return {.name = name,
          .run = manifest.run,
          .step = manifest.step,
          .directory = JoinPath(name, StepDirName(manifest.step)),
          .tokens = IntField(manifest.state, "consumed_tokens"),
          .manifest_digest = ToHex(DigestOf(EncodeManifest(manifest))),
          .source = {},
          .files = {}};
}

std::string TarName(const ArchiveRecord& record) {
  return fmt::format("{}-{}{}.{}{}", record.name, StepDirName(record.step),
                     kFormMarks[static_cast<int>(record.form)],
                     record.manifest_digest.substr(0, kDigestDigits), kTarSuffix);
}

std::string FileOf(const ArchiveRecord& record) {
  return record.bundle.empty() ? TarName(record) : record.bundle;
}

std::optional<TarNameParts> ParseTarName(std::string_view name) {
  if (!name.ends_with(kTarSuffix)) return std::nullopt;
  name.remove_suffix(kTarSuffix.size());
  const size_t dot = name.rfind('.');
  if (dot == name.npos || name.size() - dot - 1 != kDigestDigits) return std::nullopt;
  name = name.substr(0, dot);
  TarNameParts parts;
  for (const Form form : {Form::kWeights, Form::kFiles})
    if (const auto mark = kFormMarks[static_cast<int>(form)]; name.ends_with(mark)) {
      parts.form = form;
      name.remove_suffix(mark.size());
      break;
    }
  const size_t step_at = name.rfind("-step-");
  if (step_at == name.npos || step_at == 0) return std::nullopt;
  const auto step = ParseStepDirName(name.substr(step_at + 1));
  if (!step) return std::nullopt;
  parts.run = name.substr(0, step_at);
  parts.step = *step;
  return parts;
}

std::string SumsName(const ArchiveRecord& record) {
  const bool taken = std::ranges::find(record.files, kSumsName, &ArchivedFile::name) != record.files.end();
  return taken ? fmt::format("{}.cairn", kSumsName) : std::string(kSumsName);
}

std::string Sha256Sums(const ArchiveRecord& record) {
  std::string text;
  for (const ArchivedFile& file : record.files) text += fmt::format("{}  {}\n", file.sha256, file.name);
  return text;
}

std::string EncodeRecord(const ArchiveRecord& record) { return SignedSidecarText(WithoutDigest(record)); }

Result<ArchiveRecord> DecodeRecord(std::string_view text) {
  const Result<json> parsed = ParseStrictJson(text);  // copying and printing recurse: nothing that nests deep
  if (!parsed.ok() || !parsed->is_object() || parsed->value("format", json()) != "cairn-archive")
    return Corrupt("not an archive's ledger entry; it was damaged or cut short");
  const json& root = *parsed;
  const json version = root.value("version", json());
  if (version != kRecordVersion && version != kPiecesVersion)
    return NotSupported("ledger version {}, this program reads versions {} and {}; use a newer cairn",
                        version.dump(), kRecordVersion, kPiecesVersion);
  try {
    ArchiveRecord record = FromJson(root);
    if (static_cast<size_t>(record.form) >= std::size(kFormNames))
      return NotSupported("form {}; use a newer cairn", root.at("form").dump());
    if (const Status names = CheckNames(record); !names.ok()) return names;
    CAIRN_RETURN_IF_ERROR(CheckPieces(record));
    if (EncodeRecord(record) != text)
      return Corrupt("its bytes do not match its digest; it was damaged or edited");
    return record;
  } catch (const json::exception& error) {
    return Corrupt("{}", error.what());
  }
}

}  // namespace cairn
