// A whole file mapped for reading, unmapped with the object.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "ckpt/status.h"

namespace cairn {

// The bytes stay valid as long as nobody truncates the file; a reader that outlives a truncation gets SIGBUS,
// as with every mapping.
class MappedFile {
 public:
  // Errors: NotFound, IoError, each with the path.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;  // empty: nothing is mapped
};

}  // namespace cairn
