// Preloaded into a program: counts what libtorch's CPU allocator (posix_memalign) holds, and writes the peak
// in bytes to the file $TENSOR_PEAK.PID at exit. Blocks below a page are not counted.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

extern "C" void* __libc_memalign(size_t, size_t);  // NOLINT: glibc's own names
extern "C" void __libc_free(void*);                // NOLINT

namespace {

constexpr size_t kLeastBytes = 4096;

// Never destroyed: blocks are freed until the very end of the process.
struct Book {
  std::mutex mutex;
  std::unordered_map<void*, size_t> blocks;
  size_t live = 0;
  size_t peak = 0;
};
Book& TheBook() {
  static Book* book = new Book;
  return *book;
}

thread_local bool inside = false;  // the book's own allocations are not counted

void Enter(void* block, size_t bytes) {
  inside = true;
  {
    Book& book = TheBook();
    const std::lock_guard lock(book.mutex);
    book.blocks[block] = bytes;
    book.live += bytes;
    if (book.live > book.peak) book.peak = book.live;
  }
  inside = false;
}

void Leave(void* block) {
  inside = true;
  {
    Book& book = TheBook();
    const std::lock_guard lock(book.mutex);
    const auto found = book.blocks.find(block);
    if (found != book.blocks.end()) {
      book.live -= found->second;
      book.blocks.erase(found);
    }
  }
  inside = false;
}

__attribute__((destructor)) void Tell() {
  const char* path = std::getenv("TENSOR_PEAK");
  if (path == nullptr) return;
  char name[4096];
  std::snprintf(name, sizeof name, "%s.%d", path, static_cast<int>(getpid()));
  if (FILE* file = std::fopen(name, "w")) {
    std::fprintf(file, "%zu\n", TheBook().peak);
    std::fclose(file);
  }
}

}  // namespace

extern "C" int posix_memalign(void** block, size_t alignment, size_t bytes) noexcept {
  *block = __libc_memalign(alignment, bytes);
  if (*block == nullptr) return ENOMEM;
  if (!inside && bytes >= kLeastBytes) Enter(*block, bytes);
  return 0;
}

extern "C" void free(void* block) noexcept {
  if (block != nullptr && !inside) Leave(block);
  __libc_free(block);
}
