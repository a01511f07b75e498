#include "tools/archive/file_facts.h"

#include <sys/stat.h>

namespace cairn {

FileFacts FactsOf(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return {};
  return {st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec, static_cast<uint64_t>(st.st_size),
          static_cast<uint64_t>(st.st_blocks) * 512};
}

}  // namespace cairn
