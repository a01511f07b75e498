// The names of what lies in a store besides tars and what belongs to them, and those that Cairn gives to what
// it has not finished there. Whatever else lies there is somebody's.
#pragma once

#include <string_view>

#include "ckpt/io/file_system.h"

namespace cairn {

inline constexpr std::string_view kReadmeName = "README.txt";
inline constexpr std::string_view kUnpackName = "unpack.py";
inline constexpr std::string_view kLedgerName = "ledger.sqlite";  // ledger.h
inline constexpr std::string_view kStatusName =
    "status.json";                                      // of the last run by policy, unless it says where
inline constexpr std::string_view kTeamName = ".team";  // team.h
inline constexpr std::string_view kTeamClaimsName = ".claims";  // a directory; team.h

enum class Leftover {
  kNone,
  kPartial,  // a file that was being written: NAME.partial of a tar, a piece, a bundle, their sidecars, ...
  kRemoval,  // TAR.deleting: a member whose removal is not finished (removal.h)
  kStaging,  // .staging-<nonce>: a directory of weights on their way into a tar
};

inline constexpr std::string_view kStagingPrefix = ".staging-";

// By the whole name and what it is; a link is never Cairn's.
Leftover LeftoverOf(std::string_view name, FileKind kind);
// Another name that a person may take for one of those.
bool LooksLikeLeftover(std::string_view name);

}  // namespace cairn
