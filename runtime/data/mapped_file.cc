#include "runtime/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

Status MapError(const std::string& path, int error) {
  const StatusKind kind = error == ENOENT ? StatusKind::kNotFound : StatusKind::kIoError;
  return {kind, fmt::format("map {}: {}", path, strerror(error))};
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return MapError(path, errno);
  struct stat info;
  void* address = nullptr;
  size_t size = 0;
  int error = ::fstat(fd, &info) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(info.st_mode)) error = EINVAL;
  if (error == 0 && info.st_size > 0) {
    size = static_cast<size_t>(info.st_size);
    address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (error != 0) return MapError(path, error);
  return MappedFile({static_cast<const std::byte*>(address), size}, path);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), name_(std::move(other.name_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  name_ = std::move(other.name_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace cairn
