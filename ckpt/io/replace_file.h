// A small file that appears or is replaced as a whole: a reader sees the old bytes or the new ones, after a
// kill or a power loss too.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/io/file_system.h"

namespace cairn {

inline constexpr std::string_view kPartialSuffix = ".partial";  // suffix of a file that is being written

// Puts `bytes` in the place of `path`, which need not exist: written and synced as PATH.partial, renamed, its
// directory synced. A PATH.partial that a killed run left is removed first; a failure leaves none.
Status ReplaceSmallFile(FileSystem& fs, const std::string& path, std::string_view bytes);

// The same if several processes write `path`, or its directory need not be synced: each has its own
// `temporary`, which does not exist yet, in the same directory.
Status WriteAndRename(FileSystem& fs, const std::string& temporary, const std::string& path,
                      std::string_view bytes);

}  // namespace cairn
