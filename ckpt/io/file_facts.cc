#include "ckpt/io/file_facts.h"

#include <sys/stat.h>

namespace cairn {

FileFacts FactsOf(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return {};
  const auto nanoseconds = [](const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; };
  return {nanoseconds(st.st_ctim), static_cast<uint64_t>(st.st_size),
          static_cast<uint64_t>(st.st_blocks) * 512, nanoseconds(st.st_mtim), st.st_ino};
}

}  // namespace cairn
