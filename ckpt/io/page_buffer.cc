#include "ckpt/io/page_buffer.h"

#include <sys/mman.h>

#include <new>

#include "ckpt/io/file_system.h"

namespace cairn {
namespace {

constexpr size_t kHugePageBytes = 2 << 20;

}  // namespace

// Large ones in huge pages, if the kernel gives them: far fewer page faults, which are slow.
PageBuffer::PageBuffer(uint64_t bytes) : capacity(PageUp(bytes)) {
  const size_t align = bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(align, (bytes + align - 1) / align * align)));
  if (!data_) throw std::bad_alloc();
  if (align < kHugePageBytes) return;
  ::madvise(data_.get(), capacity, MADV_DONTNEED);  // small pages that an earlier use left in the heap
  ::madvise(data_.get(), capacity, MADV_HUGEPAGE);
}

}  // namespace cairn
