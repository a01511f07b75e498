#include "tools/serve/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "ckpt/base/posix_error.h"

namespace cairn {
namespace {

Status NoMemory(uint64_t bytes, int error) {
  const Status why = PosixError("no shared memory", fmt::format("of {} bytes for a save", bytes), error);
  return {StatusKind::kNoSpace, why.message()};
}

}  // namespace

// Populates by allocating the file, not by MAP_POPULATE: allocation fails if memory is short, instead of a
// SIGBUS later.
Status SharedMemory::MapAll(uint64_t bytes, bool populate) {
  if (bytes == 0) return OkStatus();
  if (populate)
    if (const int error = ::posix_fallocate(descriptor_.get(), 0, static_cast<off_t>(bytes)); error != 0)
      return NoMemory(bytes, error);
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
  if (data == MAP_FAILED) return NoMemory(bytes, errno);
  mapping_ = {data, bytes};
  return OkStatus();
}

Result<SharedMemory> SharedMemory::Make(uint64_t bytes) {
  SharedMemory memory;
  memory.descriptor_ = UniqueFd(::memfd_create("cairn-save", MFD_CLOEXEC));
  if (!memory.descriptor_.ok()) return NoMemory(bytes, errno);
  CAIRN_RETURN_IF_ERROR(memory.MapAll(bytes, true));
  return memory;
}

Result<SharedMemory> SharedMemory::Map(UniqueFd descriptor) {
  SharedMemory memory;
  memory.descriptor_ = std::move(descriptor);
  struct stat info {};
  if (!memory.descriptor_.ok() || ::fstat(memory.descriptor_.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return InvalidArgument("a window without memory behind it");
  CAIRN_RETURN_IF_ERROR(memory.MapAll(static_cast<uint64_t>(info.st_size), false));
  return memory;
}

}  // namespace cairn
