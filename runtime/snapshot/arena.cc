#include "runtime/snapshot/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace cairn {

Arena::~Arena() { Release(); }

void Arena::Release() {
  if (data_ != nullptr) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

Status Arena::Reserve(size_t bytes) {
  if (bytes <= size_) return OkStatus();
  Release();
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return NoSpace("a snapshot needs {} bytes of memory: {}; use fewer ranks a node", bytes, strerror(errno));
  data_ = static_cast<std::byte*>(memory);
  size_ = bytes;
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return OkStatus();
}

}  // namespace cairn
