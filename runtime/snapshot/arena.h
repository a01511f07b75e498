// Host memory for snapshots: allocated and touched once, then used again, so that a copy runs at memory
// speed.
//
// Fresh pages are the slow part of a copy (they were measured at a tenth of memcpy); huge pages where they
// are to be had.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "ckpt/base/status.h"

namespace cairn {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // At least `bytes`, all pages present. Keeps what it has if that is enough.
  // Errors: NoSpace when there is not enough memory.
  Status Reserve(size_t bytes);

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void Release();
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cairn
