// Memory that the helper and its trainer both see: a memfd, mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/base/mapping.h"
#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

class SharedMemory {
 public:
  // New memory of zeros. It has no pages yet: the trainer touches them, with several threads and while it
  // copies, and gets the error if memory is short. Errors: NoSpace.
  static Result<SharedMemory> Make(uint64_t bytes);

  std::span<std::byte> bytes() const { return mapping_.bytes(); }
  int descriptor() const { return descriptor_.get(); }

 private:
  SharedMemory() = default;

  UniqueFd descriptor_;
  Mapping mapping_;
};

}  // namespace cairn
