// A whole file mapped for reading, unmapped with the object.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "ckpt/base/mapping.h"
#include "ckpt/base/status.h"
#include "runtime/data/bus_guard.h"

namespace cairn {

// The bytes stay valid as long as the file is not truncated; a reader that outlives a truncation gets SIGBUS,
// as with every mapping (bus_guard.h).
class MappedFile {
 public:
  // Errors: NotFound, IoError, each with the path.
  static Result<MappedFile> Open(const std::string& path);

  std::span<const std::byte> bytes() const { return mapping_.bytes(); }

 private:
  MappedFile(Mapping mapping, const std::string& path)
      : mapping_(std::move(mapping)), name_(bytes().data(), bytes().size(), path) {}

  Mapping mapping_;
  NamedMapping name_;
};

}  // namespace cairn
