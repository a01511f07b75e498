// Every change of claims is one pass over the sidecars of all tars, then of all bundles. A sidecar is written
// only if a record in it changed. Claims are sorted and unique, so equal sets are equal texts.

#include "tools/archive/store/claims.h"

#include <algorithm>
#include <functional>
#include <set>

#include "tools/archive/store/bundle.h"

namespace cairn {
namespace {

using Claims = std::vector<std::string>;
// True if the record was changed.
using Change = std::function<bool(ArchiveRecord&)>;

bool Set(ArchiveRecord& record, Claims claims) {
  std::ranges::sort(claims);
  const auto [first, last] = std::ranges::unique(claims);
  claims.erase(first, last);
  if (claims == record.claims) return false;
  record.claims = std::move(claims);
  return true;
}

// A member may be in its own tar and in a bundle, until the work of a killed run is finished.
Status ChangeRecords(const Store& store, const Change& change) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> tars, ListTars(store));
  for (const std::string& tar : tars) {
    ArchiveMember member = DescribeTar({store, tar});
    if (member.record && change(*member.record)) CAIRN_RETURN_IF_ERROR(WriteRecord(store, *member.record));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> bundles, ListBundles(store));
  for (const std::string& name : bundles) {
    Result<Bundle> bundle = ReadBundle(store, name);
    bool changed = false;
    for (size_t i = 0; bundle.ok() && i < bundle->members.size(); ++i) changed |= change(bundle->members[i]);
    if (changed) CAIRN_RETURN_IF_ERROR(WriteBundleRecord(store, *bundle));
  }
  return OkStatus();
}

bool Contains(const Claims& claims, std::string_view claim) {
  return std::ranges::find(claims, claim) != claims.end();
}

}  // namespace

std::vector<std::string> ClaimsOf(const ArchiveRecord& record) {
  return record.claims.empty() ? Claims{std::string(kUnknownClaim)} : record.claims;
}

std::string ClaimsText(const std::vector<std::string>& claims) {
  std::string text;
  for (const std::string& claim : claims)
    text += (text.empty() ? "" : ", ") + (claim == kByHand ? std::string("hand") : claim);
  return text;
}

void InheritClaims(const Store& store, ArchiveRecord& record) {
  const ArchiveMember there = DescribeMember({store, TarName(record)});
  if (!there.record && there.bytes == 0) return;
  Claims claims = there.record ? ClaimsOf(*there.record) : Claims{std::string(kUnknownClaim)};
  if (record.claims.empty() && claims == Claims{std::string(kUnknownClaim)}) return;
  claims.insert(claims.end(), record.claims.begin(), record.claims.end());
  Set(record, std::move(claims));
}

Status AddClaim(const Store& store, const std::vector<std::string>& tars, const std::string& claim) {
  if (tars.empty() || claim.empty()) return OkStatus();
  const std::set<std::string> wanted(tars.begin(), tars.end());
  return ChangeRecords(store, [&](ArchiveRecord& record) {
    if (!wanted.contains(TarName(record))) return false;
    Claims claims = ClaimsOf(record);
    claims.push_back(claim);
    return Set(record, std::move(claims));
  });
}

Status DropClaims(const Store& store, const std::vector<std::string>& tars,
                  const std::vector<std::string>& drop) {
  if (tars.empty()) return OkStatus();
  const std::set<std::string> wanted(tars.begin(), tars.end());
  return ChangeRecords(store, [&](ArchiveRecord& record) {
    if (!wanted.contains(TarName(record))) return false;
    Claims claims = ClaimsOf(record);
    std::erase_if(claims, [&](const std::string& claim) { return Contains(drop, claim); });
    return !claims.empty() && Set(record, std::move(claims));
  });
}

Result<size_t> AdoptClaims(const Store& store, const std::vector<std::string>& from, const std::string& to) {
  std::set<std::string> adopted;
  CAIRN_RETURN_IF_ERROR(ChangeRecords(store, [&](ArchiveRecord& record) {
    Claims claims = ClaimsOf(record);
    const bool taken =
        std::erase_if(claims, [&](const std::string& claim) { return Contains(from, claim); }) > 0;
    if (!taken) return false;
    adopted.insert(TarName(record));
    claims.push_back(to);
    return Set(record, std::move(claims));
  }));
  return adopted.size();
}

}  // namespace cairn
