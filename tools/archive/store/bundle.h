// A bundle: one tar that holds several members of a store, because tapes need few large files and inodes are
// limited.
//
//   STORE/RUN-bundle-00000040-00000900.5b6c7d8e.tar       the entries of each member, byte for byte as in its
//                                                         own tar, one member after the other; last an entry
//                                                         with the same records as the sidecar, named like
//                                                         the bundle with ".json" for ".tar"
//   STORE/RUN-bundle-00000040-00000900.5b6c7d8e.tar.json  the sidecar: the members' records (record.h), with
//                                                         offsets from the beginning of the bundle
//   STORE/RUN-bundle-00000040-00000900.5b6c7d8e.tar.parity  if the policy asks for parity
//
// The numbers are the first and the last step, the digits a digest of the members' names and places before;
// RUN is "runs" if the members belong to several runs. No two members of a bundle have the same directory, so
// that tar -xf overwrites nothing. A member keeps the name that its own tar had; the sidecar and the ledger
// use it. If a member is stored twice, its own tar counts (store.h): a killed run left it, or the copy in the
// bundle was damaged and is stored again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/archive/store/store.h"

namespace cairn {

struct Bundle {
  std::string name;  // of its file in the store
  uint64_t tar_bytes = 0;
  ArchivedParity parity;
  std::vector<ArchiveRecord> members;  // in the order of their offsets
  bool operator==(const Bundle&) const = default;
};

// A name for a bundle of these members. It depends on the files that hold them now, so it differs from that
// of a bundle that it replaces. `attempt`: for another name if this one is taken.
std::string BundleName(const std::vector<ArchiveRecord>& members, int attempt = 0);
// The parts of such a name; nullopt for any other.
struct BundleNameParts {
  std::string run;
  int64_t first_step = 0, last_step = 0;
};
std::optional<BundleNameParts> ParseBundleName(std::string_view name);
// The name of the last entry of its tar.
std::string BundleIndexName(std::string_view bundle);

std::string EncodeBundle(const Bundle& bundle);
// Decodes a bundle of this name. Errors: Corrupt, NotSupported (version). The caller adds the path.
Result<Bundle> DecodeBundle(std::string_view text, const std::string& name);

// The sidecar. Errors: NotFound, Corrupt naming it.
Result<Bundle> ReadBundle(const Store& store, const std::string& name);
// Puts the sidecar in its place, whole and synced.
Status WriteBundleRecord(const Store& store, const Bundle& bundle);

}  // namespace cairn
