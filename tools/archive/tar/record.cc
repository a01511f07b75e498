// First a record as JSON and back, two functions for each part. A record is written in the lowest version
// that can hold it, so that older programs refuse only records that they would misread or shorten. Decoding
// is strict: names must be plain paths, files must lie in the tar's pieces, and the record encoded again must
// be the text that was read. Then names: of tars, and escaped to UTF-8.

#include "tools/archive/tar/record.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <stdexcept>

#include "ckpt/base/enum_names.h"
#include "ckpt/base/sidecar_text.h"
#include "ckpt/base/utf8.h"
#include "ckpt/io/file_system.h"
#include "ckpt/io/strict_json.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/plain_path.h"
#include "ckpt/run/health.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr int kRecordVersion = 2;
constexpr int kPiecesVersion = 3;  // of a tar in pieces, which would look damaged to older programs
constexpr int kTreeVersion = 4;    // of a tree with modes, links and directories, and with escaped names
constexpr int kClaimsVersion = 5;  // with claims or a health, which older programs would lose
constexpr int kBranchVersion =
    6;  // with branches by their first steps, which decide which step is the newest
constexpr int kEscapedVersion = 7;      // of a step whose source is not UTF-8, and so escaped
constexpr int kDescentVersion = 8;      // with branches by what the step descends from; its source is escaped
constexpr size_t kMaxPieces = 1 << 20;  // as many as entries
constexpr std::string_view kFormNames[] = {"full", "weights-fp16", "files"};
constexpr std::string_view kFormMarks[] = {"", ".fp16", ".files"};  // in a tar's name

int VersionOf(const ArchiveRecord& r) {
  if (r.descent.first_steps.empty() && !r.descent.branches.empty()) return kDescentVersion;
  if (!r.tree && !IsUtf8(r.source)) return kEscapedVersion;
  if (!r.descent.branches.empty()) return kBranchVersion;
  if (!r.claims.empty() || !r.healthy) return kClaimsVersion;
  return r.tree ? kTreeVersion : r.pieces.empty() ? kRecordVersion : kPiecesVersion;
}

std::string NameText(const std::string& name, bool tree) { return tree ? EscapeName(name) : name; }

// UnescapeName for code in which json's functions throw, too.
struct BadName : std::runtime_error {
  using std::runtime_error::runtime_error;
};
std::string NameOf(const json& text, bool tree) {
  const std::string escaped = text;
  if (!tree) return escaped;
  Result<std::string> name = UnescapeName(escaped);
  if (!name.ok()) throw BadName(name.status().message());
  return std::move(name).value();
}

void AddFacts(const EntryFacts& facts, json& entry) {
  entry["mode"] = fmt::format("{:04o}", facts.mode);
  entry["user"] = facts.user;
  entry["group"] = facts.group;
  entry["modified"] = {facts.modified_unix_seconds, facts.modified_nanoseconds};
}

EntryFacts FactsFromJson(const json& entry) {
  const std::string mode = entry.at("mode");
  EntryFacts facts{.mode = 0,
                   .user = entry.at("user"),
                   .group = entry.at("group"),
                   .modified_unix_seconds = entry.at("modified").at(0),
                   .modified_nanoseconds = entry.at("modified").at(1)};
  const auto [end, error] = std::from_chars(mode.data(), mode.data() + mode.size(), facts.mode, 8);
  if (error != std::errc() || end != mode.data() + mode.size() || facts.mode > 07777 ||
      facts.modified_nanoseconds >= 1'000'000'000)
    throw BadName("has an entry with an invalid mode or time");
  return facts;
}

json ToJson(const ArchivedTree& tree) {
  json entries = json::array();
  for (const ArchivedEntry& e : tree.entries) {
    json entry = {{"name", EscapeName(e.name)}};
    if (e.kind == EntryKind::kLink) entry["link"] = EscapeName(e.target);
    AddFacts(e.facts, entry);
    entries.push_back(std::move(entry));
  }
  return {{"links", tree.followed_links ? "followed" : "kept"}, {"entries", std::move(entries)}};
}

ArchivedTree TreeFromJson(const json& root) {
  ArchivedTree tree{.followed_links = root.at("links") == "followed"};
  for (const json& e : root.at("entries")) {
    ArchivedEntry entry{.name = NameOf(e.at("name"), true), .facts = FactsFromJson(e)};
    if (e.contains("link")) {
      entry.kind = EntryKind::kLink;
      entry.target = NameOf(e["link"], true);
    }
    tree.entries.push_back(std::move(entry));
  }
  return tree;
}

json ToJson(const ArchivedFile& file, bool tree) {
  json entry = {{"name", NameText(file.name, tree)},
                {"bytes", file.bytes},
                {"sha256", file.sha256},
                {"offset", file.offset},
                {"stored_bytes", file.stored_bytes}};
  if (file.packed) entry["packed"] = true;
  if (tree) AddFacts(file.facts, entry);
  return entry;
}

ArchivedFile FileFromJson(const json& entry, bool tree) {
  return {.name = NameOf(entry.at("name"), tree),
          .bytes = entry.at("bytes"),
          .sha256 = entry.at("sha256"),
          .offset = entry.at("offset"),
          .stored_bytes = entry.at("stored_bytes"),
          .packed = entry.contains("packed"),
          .facts = tree ? FactsFromJson(entry) : EntryFacts{}};
}

json WithoutDigest(const ArchiveRecord& r) {
  json files = json::array();
  for (const ArchivedFile& file : r.files) files.push_back(ToJson(file, r.tree.has_value()));
  json root = {{"format", "cairn-archive"},
               {"version", VersionOf(r)},
               {"name", r.name},
               {"run", r.run},
               {"step", r.step},
               {"directory", r.directory},
               {"tokens", r.tokens},
               {"saved_unix_seconds", r.saved_unix_seconds},
               {"form", Name(r.form)},
               {"manifest_digest", r.manifest_digest},
               {"source", NameText(r.source, r.tree || VersionOf(r) >= kEscapedVersion)},
               {"tar_bytes", r.tar_bytes},
               {"verified_unix_seconds", r.verified_unix_seconds},
               {"files", std::move(files)}};
  if (r.tree) root["tree"] = ToJson(*r.tree);
  if (!r.derived_from.empty()) root["derived_from"] = r.derived_from;
  if (!r.claims.empty()) root["claims"] = r.claims;
  if (!r.healthy) root["healthy"] = false;
  root.update(DescentJson(r.descent));
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
  const bool tree = root.contains("tree");
  if (tree) r.tree = TreeFromJson(root["tree"]);
  r.source = NameOf(root.at("source"), tree || root.at("version") >= kEscapedVersion);
  r.healthy = root.value("healthy", true);
  r.descent = DescentAt(root);
  r.claims = root.value("claims", std::vector<std::string>());
  r.tar_bytes = root.at("tar_bytes");
  r.verified_unix_seconds = root.at("verified_unix_seconds");
  if (root.contains("pieces"))
    for (const json& piece : root["pieces"]) r.pieces.push_back(piece.at("bytes"));
  if (root.contains("bundle")) {
    r.bundle = root["bundle"].at("name");
    r.bundle_offset = root["bundle"].at("offset");
  }
  if (root.contains("parity")) r.parity = {root["parity"].at("name"), root["parity"].at("bytes")};
  for (const json& file : root.at("files")) r.files.push_back(FileFromJson(file, tree));
  return r;
}

// Checks that names are unique, and nothing is below a file or link.
Status CheckEntries(const ArchiveRecord& record) {
  std::map<std::string_view, EntryKind> kinds;
  for (const ArchivedFile& file : record.files)
    if (!kinds.emplace(file.name, EntryKind::kFile).second) return Corrupt("contains '{}' twice", file.name);
  for (const ArchivedEntry& entry : record.tree->entries) {
    const bool root = entry.name.empty() && entry.kind == EntryKind::kDirectory;
    if (!root && !IsPlainPath(entry.name)) return Corrupt("names an entry '{}'", entry.name);
    if (entry.kind == EntryKind::kLink &&
        (entry.target.empty() || entry.target.find('\0') != std::string::npos))
      return Corrupt("has a link '{}' without a target", entry.name);
    if (!kinds.emplace(entry.name, entry.kind).second) return Corrupt("contains '{}' twice", entry.name);
  }
  for (const auto& [name, kind] : kinds)
    for (size_t slash = name.find('/'); slash != name.npos; slash = name.find('/', slash + 1))
      if (const auto above = kinds.find(name.substr(0, slash));
          above == kinds.end() || above->second != EntryKind::kDirectory)
        return Corrupt("has '{}', but not its directory", name);
  return OkStatus();
}

// Checks names, because they become paths.
Status CheckNames(const ArchiveRecord& record) {
  const bool tree = record.form == Form::kFiles;
  for (const ArchivedFile& file : record.files)
    if (tree ? !IsPlainPath(file.name) : !IsPlainFileName(file.name))
      return Corrupt("names a file '{}'", file.name);
  if (record.tree && !tree) return Corrupt("is a step, but has entries of a tree");
  if (record.tree) CAIRN_RETURN_IF_ERROR(CheckEntries(record));
  if (!IsPlainFileName(record.name) || !IsPlainPath(record.directory) || record.manifest_digest.size() != 32)
    return Corrupt("names its run '{}' in '{}'", record.name, record.directory);
  if (!record.bundle.empty() && !IsPlainFileName(record.bundle))
    return Corrupt("names '{}' as its bundle", record.bundle);
  if (!record.parity.name.empty() && record.parity.name != TarName(record) + std::string(kParitySuffix))
    return Corrupt("names '{}' as its parity", record.parity.name);
  return OkStatus();
}

// Checks that the pieces add up to the tar, and that every file lies in one of them.
Status CheckPieces(const ArchiveRecord& record) {
  if (record.pieces.empty()) return OkStatus();
  uint64_t left = record.tar_bytes;
  for (const uint64_t bytes : record.pieces) {
    if (bytes == 0 || bytes > left) return Corrupt("has pieces whose sizes do not add up to the tar");
    left -= bytes;
  }
  if (left > 0 || !record.bundle.empty()) return Corrupt("has pieces whose sizes do not add up to the tar");
  for (const ArchivedFile& file : record.files) {
    uint64_t offset = file.offset;
    size_t i = 0;
    for (; i < record.pieces.size() && offset >= record.pieces[i]; ++i) offset -= record.pieces[i];
    if (i == record.pieces.size() || file.stored_bytes > record.pieces[i] - offset)
      return Corrupt("{} is in no piece", file.name);
  }
  return OkStatus();
}

}  // namespace

std::string_view Name(Form form) { return NameIn<Form::kFiles>(kFormNames, form); }

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
          .healthy = Healthy(manifest),
          .descent = {manifest.descent.branches, {}, manifest.descent.first_steps}};
}

std::string TarName(const ArchiveRecord& record) {
  return fmt::format("{}-{}{}.{}{}", record.name, StepDirName(record.step),
                     NameIn<Form::kFiles>(kFormMarks, record.form),
                     record.manifest_digest.substr(0, kTarDigestDigits), kTarSuffix);
}

std::string FileOf(const ArchiveRecord& record) {
  return record.bundle.empty() ? TarName(record) : record.bundle;
}

const std::string& ContentOf(const ArchiveRecord& record) {
  return record.form == Form::kWeights ? record.derived_from : record.manifest_digest;
}

std::optional<std::string_view> StemOfTar(std::string_view name) {
  if (!name.ends_with(kTarSuffix)) return std::nullopt;
  name.remove_suffix(kTarSuffix.size());
  const size_t dot = name.rfind('.');
  if (dot == name.npos || name.size() - dot - 1 != kTarDigestDigits || !IsHex(name.substr(dot + 1)))
    return std::nullopt;
  return name.substr(0, dot);
}

std::optional<TarNameParts> ParseTarName(std::string_view name) {
  const auto stem = StemOfTar(name);
  if (!stem) return std::nullopt;
  name = *stem;
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

std::string TarPieceName(std::string_view tar, size_t number) {
  if (number == 1) return std::string(tar);
  const bool partial = tar.ends_with(kPartialSuffix);
  if (partial) tar.remove_suffix(kPartialSuffix.size());
  return fmt::format("{}.{}{}", tar, number, partial ? kPartialSuffix : "");
}

std::optional<TarPieceParts> ParseTarPieceName(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos || !ParseTarName(name.substr(0, dot))) return std::nullopt;
  TarPieceParts parts{.tar = std::string(name.substr(0, dot))};
  std::from_chars(name.data() + dot + 1, name.data() + name.size(), parts.number);
  if (parts.number < 2 || parts.number > kMaxPieces || TarPieceName(parts.tar, parts.number) != name)
    return std::nullopt;
  return parts;
}

std::string EncodeRecord(const ArchiveRecord& record) { return SignedSidecarText(WithoutDigest(record)); }

Result<ArchiveRecord> DecodeRecord(std::string_view text) {
  const Result<json> parsed =
      ParseStrictJson(text);  // copying and printing recurse, so deep nesting is refused
  if (!parsed.ok() || !parsed->is_object() || parsed->value("format", json()) != "cairn-archive")
    return Corrupt("this is not the sidecar of an archived member; it was damaged or truncated");
  const json& root = *parsed;
  const json version = root.value("version", json());
  if (!version.is_number_integer() || version < kRecordVersion || version > kDescentVersion)
    return NotSupported("sidecar version {}, but this program reads {} to {}; use a newer cairn",
                        version.dump(), kRecordVersion, kDescentVersion);
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
  } catch (const BadName& error) {
    return Corrupt("{}", error.what());
  }
}

}  // namespace cairn
