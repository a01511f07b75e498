// The list for sha256sum that ends every tar. If the sidecar is lost, the digests are rebuilt from it.
#pragma once

#include <string>
#include <string_view>

#include "tools/archive/tar/record.h"

namespace cairn {

// The name of the entry with Sha256Sums(): kSha256SumsName, with as many ".cairn" appended as make it unique
// in the member.
std::string SumsName(const ArchiveRecord& record);
// The list for `sha256sum -c`; names with a backslash or line break are escaped as sha256sum does. For a tree
// a comment comes first, with its path and how links were stored.
std::string Sha256Sums(const ArchiveRecord& record);
// The inverse: enters every file's SHA-256, and a tree's path, into the record. Errors: Corrupt naming a file
// that is missing in the list.
Status TakeSha256Sums(std::string_view text, ArchiveRecord& record);

}  // namespace cairn
