// Memory that the helper and its trainer both see: a memfd, mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

class SharedMemory {
 public:
  // New memory of zeros, with all pages present: the trainer's first copy does not wait for them. Errors:
  // NoSpace if there is not enough memory.
  static Result<SharedMemory> Make(uint64_t bytes);
  // Maps memory that another process made, for writing. Errors: InvalidArgument if it is not such memory.
  static Result<SharedMemory> Map(UniqueFd descriptor);

  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMemory();

  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  int descriptor() const { return descriptor_.get(); }

 private:
  SharedMemory() = default;
  Status MapAll(uint64_t bytes, bool populate);

  UniqueFd descriptor_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace cairn
