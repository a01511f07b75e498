// The entries of an archived step's tar, read only from its headers. Nothing in them is trusted.
//
// A member of an archive is a plain pax tar of regular files RUN/step-N/FILE; the tar of a tree, known by its
// name (record.h), has RUN/NAME/PATH, and also directories and symbolic links. Everything else that a tar can
// contain (absolute paths, "..", hard links, devices, duplicates, sparse files, entries below a link) is
// refused here, before a byte is extracted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/file_system.h"
#include "tools/archive/tar/record.h"

namespace cairn {

inline constexpr uint64_t kTarBlockBytes = 512;
// `bytes` in whole blocks.
constexpr uint64_t TarBlocksBytes(uint64_t bytes) {
  return (bytes + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes;
}

struct TarIndex {
  std::string directory;                   // "RUN/step-00000040", common to all entries
  std::vector<ArchivedFile> files;         // without SHA-256; `bytes` of packed ones are 0
  std::vector<ArchivedEntry> others = {};  // directories and links of a tree
  uint64_t end = 0;                        // of the last entry, in whole blocks
};

// The place of a member's entries: a whole tar, the pieces of one, or a part of a bundle.
struct TarPlace {
  std::string root;  // its name in messages, and the directory that a view of it shows
  std::string file;
  Form form = Form::kFull;
  uint64_t begin = 0;
  uint64_t bytes = UINT64_MAX;        // up to the end of the file
  std::vector<uint64_t> pieces = {};  // bytes of each (tar_pieces.h), `file` being the first; empty: one file
};
// The place of a tar that holds one member, under any path; the form follows from its name.
TarPlace PlaceOfTar(const std::string& path);

// Reads the headers and skips the data. Offsets count from the beginning of the first file. Errors:
// Corrupt naming the piece, or the entry and its fault.
Result<TarIndex> ReadTarIndex(FileSystem& fs, const TarPlace& place);
// The last entry of a tar, whatever its name. Errors: Corrupt.
Result<ArchivedFile> ReadLastEntry(FileSystem& fs, const std::string& path);

}  // namespace cairn
