#include "tools/serve/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "ckpt/base/posix_error.h"

namespace cairn {
namespace {

Status NoMemory(uint64_t bytes, int error) {
  const Status why = PosixError("no shared memory", fmt::format("of {} bytes for a save", bytes), error);
  return {StatusKind::kNoSpace, why.message()};
}

}  // namespace

Status SharedMemory::MapAll(uint64_t bytes) {
  if (bytes == 0) return OkStatus();
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
  if (data == MAP_FAILED) return NoMemory(bytes, errno);
  mapping_ = {data, bytes};
  return OkStatus();
}

Result<SharedMemory> SharedMemory::Make(uint64_t bytes) {
  SharedMemory memory;
  memory.descriptor_ = UniqueFd(::memfd_create("cairn-save", MFD_CLOEXEC));
  if (!memory.descriptor_.ok()) return NoMemory(bytes, errno);
  if (::ftruncate(memory.descriptor_.get(), static_cast<off_t>(bytes)) != 0) return NoMemory(bytes, errno);
  CAIRN_RETURN_IF_ERROR(memory.MapAll(bytes));
  return memory;
}

Result<SharedMemory> SharedMemory::Map(UniqueFd descriptor) {
  SharedMemory memory;
  memory.descriptor_ = std::move(descriptor);
  struct stat info {};
  if (!memory.descriptor_.ok() || ::fstat(memory.descriptor_.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return InvalidArgument("a window without memory behind it");
  CAIRN_RETURN_IF_ERROR(memory.MapAll(static_cast<uint64_t>(info.st_size)));
  return memory;
}

}  // namespace cairn
