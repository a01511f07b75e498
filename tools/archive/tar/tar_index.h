// The entries of an archived step's tar, read only from its headers. Nothing in them is trusted.
//
// A member of an archive is a plain pax tar of regular files RUN/step-N/FILE; the tar of a tree, known by its
// name (record.h), has RUN/NAME/PATH, and also directories and symbolic links. Everything else that a tar can
// contain (absolute paths, "..", hard links, devices, duplicates, sparse files, entries below a link) is
// refused here, before a byte is extracted.
#pragma once

#include <string>
#include <vector>

#include "tools/archive/tar/tar_pieces.h"

namespace cairn {

struct TarIndex {
  std::string directory;                   // "RUN/step-00000040", common to all entries
  std::vector<ArchivedFile> files;         // without SHA-256; `bytes` of packed ones are 0
  std::vector<ArchivedEntry> others = {};  // directories and links of a tree
  uint64_t end = 0;                        // of the last entry, in whole blocks
};

// Reads the headers and skips the data. Offsets count from the beginning of the first file. Errors:
// Corrupt naming the piece, or the entry and its fault.
Result<TarIndex> ReadTarIndex(FileSystem& fs, const TarPlace& place);
// The last entry of a tar, whatever its name. Errors: Corrupt.
Result<ArchivedFile> ReadLastEntry(FileSystem& fs, const std::string& path);

}  // namespace cairn
