// Memory of one large transfer, aligned for O_DIRECT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace cairn {

class PageBuffer {
 public:
  // Allocates at least `bytes`, not initialised. Throws std::bad_alloc.
  explicit PageBuffer(uint64_t bytes);

  std::byte* data() { return data_.get(); }

  const uint64_t capacity;  // bytes, a multiple of kPageBytes
  uint64_t size = 0;        // bytes filled so far

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace cairn
