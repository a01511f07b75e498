// Reads the files of a stored catalog once, each from front to back and several side by side: every byte of
// them, and every element that a tensor has in them.
//
// The order is that of the disk, not of the tensors. Sums of elements and of files do not depend on it.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "convert/foreign/stored_source.h"
#include "convert/stream/fingerprint.h"

namespace cairn {

struct StoredScan {
  StepFingerprint& sums;  // of the catalog; each element is added once
  // The next bytes of file number `file` of the catalog; may be empty. Called by several threads, for one
  // file by one of them at a time.
  std::function<void(uint32_t file, std::span<const std::byte> bytes)> raw;
  int threads = 1;  // each reads a file
};

// The catalog's files are relative to `directory`; the catalog has passed StoredSource::Make().
// Errors: those of the disk.
Status ScanStored(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                  const StoredScan& scan);

}  // namespace cairn
