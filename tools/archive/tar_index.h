// What lies where in an archived step's tar: read from its headers alone, and trusted with nothing.
//
// A member of an archive is a plain pax tar of RUN/step-N/FILE entries, regular files all; of a tree (a tar's
// name tells, record.h) RUN/NAME/PATH. Whatever else a tar can say (absolute paths, "..", links, devices,
// duplicates, sparse files) is refused here, before a byte is extracted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/file_system.h"
#include "tools/archive/record.h"

namespace cairn {

struct TarEntry {
  std::string name;     // within the step, without the suffix of packed files
  uint64_t offset = 0;  // of its bytes in the tar
  uint64_t bytes = 0;   // in the tar
  bool packed = false;  // packed_file.h
  int64_t modified_unix_seconds = 0;
};

struct TarIndex {
  std::string directory;  // "RUN/step-00000040", common to all entries
  std::vector<TarEntry> entries;

  const TarEntry* Find(std::string_view name) const;
};

// "a/b/c": no "..", nothing empty, not absolute, and not too long.
bool IsPlainPath(std::string_view path);

// Reads the headers of `path`, skipping the data. Errors: Corrupt naming the entry and what is wrong with it.
Result<TarIndex> ReadTarIndex(FileSystem& fs, const std::string& path);
// The same from what the sidecar says, without reading the tar. The list for sha256sum is not in it.
TarIndex IndexOf(const ArchiveRecord& record);

}  // namespace cairn
