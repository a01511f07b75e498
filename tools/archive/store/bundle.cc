// The sidecar of a bundle is the text of its members' records under one digest. Decoding trusts nothing: it
// checks each record, then that members and files lie inside of what holds them, and then encodes the
// result again and compares the texts. That last comparison refuses any changed byte.

#include "tools/archive/store/bundle.h"

#include <algorithm>
#include <set>

#include "ckpt/base/digest.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/base/sidecar_text.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/io/strict_json.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr int kBundleVersion = 1;
constexpr std::string_view kMark = "-bundle-";
constexpr std::string_view kSeveralRuns = "runs";

json WithoutDigest(const Bundle& bundle) {
  json members = json::array();
  for (const ArchiveRecord& member : bundle.members) members.push_back(json::parse(EncodeRecord(member)));
  json root = {{"format", "cairn-bundle"},
               {"version", kBundleVersion},
               {"name", bundle.name},
               {"tar_bytes", bundle.tar_bytes},
               {"members", std::move(members)}};
  if (!bundle.parity.name.empty())
    root["parity"] = {{"name", bundle.parity.name}, {"bytes", bundle.parity.bytes}};
  return root;
}

// Checks that every file lies in its member, every member in the bundle, and that no two members share bytes
// or a directory.
Status CheckPlaces(const Bundle& bundle) {
  std::set<std::string> directories;
  uint64_t end = 0;
  for (const ArchiveRecord& m : bundle.members) {
    if (m.bundle != bundle.name || !m.pieces.empty()) return Corrupt("has a member of '{}'", m.bundle);
    if (!directories.insert(m.directory).second) return Corrupt("contains '{}' twice", m.directory);
    if (m.bundle_offset < end || m.bundle_offset > bundle.tar_bytes ||
        m.tar_bytes > bundle.tar_bytes - m.bundle_offset)
      return Corrupt("{} lies outside of it", TarName(m));
    end = m.bundle_offset + m.tar_bytes;
    for (const ArchivedFile& file : m.files)
      if (file.offset < m.bundle_offset || file.offset > end || file.stored_bytes > end - file.offset)
        return Corrupt("{} of {} lies outside of its member", file.name, TarName(m));
  }
  if (!bundle.parity.name.empty() && bundle.parity.name != bundle.name + std::string(kParitySuffix))
    return Corrupt("names '{}' as its parity", bundle.parity.name);
  return OkStatus();
}

}  // namespace

std::string BundleName(const std::vector<ArchiveRecord>& members, int attempt) {
  std::string run = members.front().name, names = fmt::format("{}\n", attempt);
  int64_t first = members.front().step, last = first;
  for (const ArchiveRecord& member : members) {
    if (member.name != run) run = kSeveralRuns;
    first = std::min(first, member.step);
    last = std::max(last, member.step);
    names += fmt::format("{} {}\n", TarName(member), member.bundle);
  }
  return fmt::format("{}{}{:08}-{:08}.{}{}", run, kMark, first, last,
                     ToHex(DigestOf(names)).substr(0, kTarDigestDigits), kTarSuffix);
}

std::optional<BundleNameParts> ParseBundleName(std::string_view name) {
  const auto stem = StemOfTar(name);
  if (!stem || !IsPlainFileName(name)) return std::nullopt;
  const size_t mark = stem->rfind(kMark);
  if (mark == name.npos || mark == 0) return std::nullopt;
  const std::string_view steps = stem->substr(mark + kMark.size());
  const size_t dash = steps.find('-');
  if (dash == steps.npos) return std::nullopt;
  const auto first = ParseNumber<int64_t>(steps.substr(0, dash), 0),
             last = ParseNumber<int64_t>(steps.substr(dash + 1), 0);
  if (!first || !last) return std::nullopt;
  return BundleNameParts{std::string(stem->substr(0, mark)), *first, *last};
}

std::string BundleIndexName(std::string_view bundle) {
  return fmt::format("{}.json", bundle.substr(0, bundle.size() - kTarSuffix.size()));
}

std::string EncodeBundle(const Bundle& bundle) { return SignedSidecarText(WithoutDigest(bundle)); }

Result<Bundle> DecodeBundle(std::string_view text, const std::string& name) {
  const Result<json> parsed = ParseStrictJson(text);
  if (!parsed.ok() || !parsed->is_object() || parsed->value("format", json()) != "cairn-bundle")
    return Corrupt("these are not the records of a bundle; they were damaged or truncated");
  const json& root = *parsed;
  if (const json version = root.value("version", json()); version != kBundleVersion)
    return NotSupported("it has bundle version {}, but this program reads version {}; use a newer cairn",
                        version.dump(), kBundleVersion);
  try {
    Bundle bundle{.name = root.at("name"), .tar_bytes = root.at("tar_bytes")};
    if (root.contains("parity")) bundle.parity = {root["parity"].at("name"), root["parity"].at("bytes")};
    for (const json& member : root.at("members")) {
      CAIRN_ASSIGN_OR_RETURN(ArchiveRecord record, DecodeRecord(SidecarText(member)));
      bundle.members.push_back(std::move(record));
    }
    if (bundle.name != name) return Corrupt("belongs to '{}'", bundle.name);
    CAIRN_RETURN_IF_ERROR(CheckPlaces(bundle));
    if (EncodeBundle(bundle) != text)
      return Corrupt("its bytes do not match its digest; it was damaged or edited");
    return bundle;
  } catch (const json::exception& error) {
    return Corrupt("{}", error.what());
  }
}

Result<Bundle> ReadBundle(const Store& store, const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(store.fs(), store.Sidecar(name), kMaxRecordBytes));
  Result<Bundle> bundle = DecodeBundle(text, name);
  return bundle.ok() ? std::move(bundle) : bundle.status().WithContext(name + ".json");
}

Status WriteBundleRecord(const Store& store, const Bundle& bundle) {
  return ReplaceSmallFile(store.fs(), store.Sidecar(bundle.name), EncodeBundle(bundle));
}

}  // namespace cairn
