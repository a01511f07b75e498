// The entries of an archived step's tar, read from its headers alone. Nothing in them is trusted.
//
// A member of an archive is a plain pax tar of RUN/step-N/FILE entries, regular files all; of a tree (a tar's
// name tells, record.h) RUN/NAME/PATH, directories and symbolic links too. Whatever else a tar can say
// (absolute paths, "..", hard links, devices, duplicates, sparse files, entries below a link) is refused
// here, before a byte is extracted.
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
  uint64_t end = 0;                        // behind the last entry, filled up to a whole block
};

// Where a member's entries lie: in all of a tar, in the pieces of one, or in a stretch of a bundle.
struct TarPlace {
  std::string root;  // what messages call it, and the directory that it is seen as
  std::string file;
  Form form = Form::kFull;
  uint64_t begin = 0;
  uint64_t bytes = UINT64_MAX;        // as far as the file goes
  std::vector<uint64_t> pieces = {};  // bytes of each (tar_pieces.h), `file` being the first; empty: one file
};
// A tar that holds one member, under any path; its name tells the form.
TarPlace PlaceOfTar(const std::string& path);

// "a/b/c": no "..", nothing empty, not absolute, and not too long.
bool IsPlainPath(std::string_view path);

// Reads the headers there, skipping the data. Offsets count from the begin of the first file. Errors: Corrupt
// naming the piece, or the entry and what is wrong with it.
Result<TarIndex> ReadTarIndex(FileSystem& fs, const TarPlace& place);
// The last entry of a tar, whatever its name. Errors: Corrupt.
Result<ArchivedFile> ReadLastEntry(FileSystem& fs, const std::string& path);

}  // namespace cairn
