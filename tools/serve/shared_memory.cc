#include "tools/serve/shared_memory.h"

#include <sys/mman.h>
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

Result<SharedMemory> SharedMemory::Make(uint64_t bytes) {
  SharedMemory memory;
  memory.descriptor_ = UniqueFd(::memfd_create("cairn-save", MFD_CLOEXEC));
  if (!memory.descriptor_.ok()) return NoMemory(bytes, errno);
  if (::ftruncate(memory.descriptor_.get(), static_cast<off_t>(bytes)) != 0) return NoMemory(bytes, errno);
  if (bytes == 0) return memory;
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor_.get(), 0);
  if (data == MAP_FAILED) return NoMemory(bytes, errno);
  memory.mapping_ = {data, bytes};
  return memory;
}

}  // namespace cairn
