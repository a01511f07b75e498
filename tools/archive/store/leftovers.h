// Removes members from a store, and the files and directories that killed runs left in it. Files that Cairn
// did not make are not touched.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tools/archive/store/store.h"

namespace cairn {

// Weights on their way into a tar: .staging.partial-NONCE (partial_dir.h).
inline constexpr std::string_view kStagingName = ".staging";

// Removes a tar or a bundle from the store with its sidecar, parity and pieces. Its (first) file is renamed
// to NAME.deleting first, so that the next CleanStore ends a removal that was killed. Requires the lock.
// Errors: InvalidArgument if the file is a link.
Status RemoveMember(const Store& store, const std::string& file);
// The rest of a removal, after that renaming.
Status EndRemoval(const Store& store, const std::string& file);

enum class Leftover {
  kNone,
  kPartial,  // NAME.partial, a file that was being written: a tar, a piece, a bundle, a sidecar, ...
  kRemoval,  // TAR.deleting: a removal that is not finished
};
// By the full name and the kind of file; a link is never Cairn's.
Leftover LeftoverOf(std::string_view name, FileKind kind);
// True for every name that looks like a leftover.
bool LooksLikeLeftover(std::string_view name);

// Removes all leftovers, those of staging too. `note` gets a line for each file that looks like one but is
// not. Requires the lock.
using StoreNote = std::function<void(const std::string& line)>;
Status CleanStore(
    const Store& store, const StoreNote& note = [](const auto&) {});
// The same before a process writes into the store, whose README it brings up to date.
Status PrepareStore(const Store& store, const StoreNote& note);

}  // namespace cairn
