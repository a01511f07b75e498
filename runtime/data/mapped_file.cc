#include "runtime/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "ckpt/base/unique_fd.h"

namespace cairn {
namespace {

Status MapError(const std::string& path, int error) {
  const StatusKind kind = error == ENOENT ? StatusKind::kNotFound : StatusKind::kIoError;
  return {kind, fmt::format("map {}: {}", path, strerror(error))};
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!fd.ok() || ::fstat(fd.get(), &info) != 0) return MapError(path, errno);
  if (!S_ISREG(info.st_mode)) return MapError(path, EINVAL);
  if (info.st_size == 0) return MappedFile({}, path);
  const auto size = static_cast<size_t>(info.st_size);
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return MapError(path, errno);
  return MappedFile({address, size}, path);
}

}  // namespace cairn
