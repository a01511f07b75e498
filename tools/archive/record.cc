#include "tools/archive/record.h"

#include "ckpt/file_system.h"
#include "ckpt/layout.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr int kRecordVersion = 1;
constexpr size_t kDigestDigits = 8;  // of the manifest's digest, in a tar's name

json WithoutDigest(const ArchiveRecord& r) {
  json files = json::array();
  for (const ArchivedFile& file : r.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  return {{"format", "cairn-archive"},
          {"version", kRecordVersion},
          {"name", r.name},
          {"run", r.run},
          {"step", r.step},
          {"tokens", r.tokens},
          {"manifest_digest", r.manifest_digest},
          {"source", r.source},
          {"tar_bytes", r.tar_bytes},
          {"verified_unix_seconds", r.verified_unix_seconds},
          {"files", std::move(files)}};
}

std::string Dump(const json& value) {
  return value.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

// json::at and get throw; DecodeRecord turns that into one Status.
ArchiveRecord FromJson(const json& root) {
  ArchiveRecord r;
  r.name = root.at("name");
  r.run = root.at("run");
  r.step = root.at("step");
  r.tokens = root.at("tokens");
  r.manifest_digest = root.at("manifest_digest");
  r.source = root.at("source");
  r.tar_bytes = root.at("tar_bytes");
  r.verified_unix_seconds = root.at("verified_unix_seconds");
  for (const json& file : root.at("files"))
    r.files.push_back({file.at("name"), file.at("bytes"), file.at("sha256")});
  return r;
}

}  // namespace

ArchiveRecord RecordOf(const Manifest& manifest, std::string name) {
  return {.name = std::move(name),
          .run = manifest.run,
          .step = manifest.step,
          .tokens = IntField(manifest.state, "consumed_tokens"),
          .manifest_digest = ToHex(DigestOf(EncodeManifest(manifest))),
          .source = {},
          .files = {}};
}

std::string TarName(const ArchiveRecord& record) {
  return fmt::format("{}-{}.{}{}", record.name, StepDirName(record.step),
                     record.manifest_digest.substr(0, kDigestDigits), kTarSuffix);
}

std::optional<std::pair<std::string, int64_t>> ParseTarName(std::string_view name) {
  if (!name.ends_with(kTarSuffix)) return std::nullopt;
  name.remove_suffix(kTarSuffix.size());
  const size_t dot = name.rfind('.');
  const size_t step_at = name.rfind("-step-");
  if (dot == name.npos || step_at == name.npos || step_at == 0 || dot < step_at) return std::nullopt;
  const auto step = ParseStepDirName(name.substr(step_at + 1, dot - step_at - 1));
  if (!step || name.size() - dot - 1 != kDigestDigits) return std::nullopt;
  return std::pair(std::string(name.substr(0, step_at)), *step);
}

std::string EntryDirectory(const ArchiveRecord& record) {
  return JoinPath(record.name, StepDirName(record.step));
}

std::string Sha256Sums(const ArchiveRecord& record) {
  std::string text;
  for (const ArchivedFile& file : record.files) text += fmt::format("{}  {}\n", file.sha256, file.name);
  return text;
}

std::string EncodeRecord(const ArchiveRecord& record) {
  json root = WithoutDigest(record);
  root["digest"] = ToHex(DigestOf(Dump(root)));
  return Dump(root);
}

Result<ArchiveRecord> DecodeRecord(std::string_view text) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || root.value("format", json()) != "cairn-archive")
    return Corrupt("not an archive's ledger entry; it was damaged or cut short");
  const json version = root.value("version", json());
  if (version != kRecordVersion)
    return NotSupported("ledger version {}, this program reads version {}; use a newer cairn", version.dump(),
                        kRecordVersion);
  try {
    ArchiveRecord record = FromJson(root);
    if (EncodeRecord(record) != text)
      return Corrupt("its bytes do not match its digest; it was damaged or edited");
    return record;
  } catch (const json::exception& error) {
    return Corrupt("{}", error.what());
  }
}

}  // namespace cairn
