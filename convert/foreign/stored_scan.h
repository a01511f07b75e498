// Reads the files of a stored catalog once, each from front to back: every byte of them, and every element
// that a tensor has there.
//
// The order is that of the disk, not of the tensors. Sums of elements and of files do not care.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "convert/foreign/stored_source.h"

namespace cairn {

struct StoredScan {
  // The elements of a tensor from row-major index `begin` on. Each element once, in any order.
  std::function<void(uint32_t tensor, uint64_t begin, std::span<const std::byte> bytes)> see;
  // The next bytes of file number `file` of the catalog; may be empty.
  std::function<void(uint32_t file, std::span<const std::byte> bytes)> raw;
};

// The catalog's files are relative to `directory`; the catalog has passed StoredSource::Make().
// Errors: those of the disk.
Status ScanStored(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                  const StoredScan& scan);

}  // namespace cairn
