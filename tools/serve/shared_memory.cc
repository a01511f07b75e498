#include "tools/serve/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "ckpt/base/posix_error.h"

namespace cairn {
namespace {

Status NoMemory(uint64_t bytes, int error) {
  const Status why = PosixError("no shared memory", fmt::format("of {} bytes for a save", bytes), error);
  return {StatusKind::kNoSpace, why.message()};
}

}  // namespace

bool IsInMemory(const std::string& directory) {
  struct statfs facts;
  return ::statfs(directory.c_str(), &facts) == 0 && facts.f_type == TMPFS_MAGIC;
}

Result<SharedMemory> SharedMemory::Make(uint64_t bytes) {
  SharedMemory memory;
  memory.descriptor_ = UniqueFd(::memfd_create("cairn-save", MFD_CLOEXEC));
  if (!memory.descriptor_.ok()) return NoMemory(bytes, errno);
  return Map(std::move(memory), bytes);
}

Result<SharedMemory> SharedMemory::MakeFile(FileSystem& fs, const std::string& path, uint64_t bytes) {
  SharedMemory memory;
  CAIRN_ASSIGN_OR_RETURN(FileLock lock, fs.OpenLock(path));
  CAIRN_ASSIGN_OR_RETURN(const bool locked, lock.TryLock(FileLock::How::kExclusive));
  if (!locked) return AlreadyExists("{} is in use", path);
  memory.file_.reset(new NamedFile{fs, std::move(lock)});
  int error = 0;
  do error = ::fallocate(memory.descriptor(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  while (error == EINTR);
  if (error != 0) return NoMemory(bytes, error);
  return Map(std::move(memory), bytes);
}

Result<SharedMemory> SharedMemory::Map(SharedMemory memory, uint64_t bytes) {
  if (::ftruncate(memory.descriptor(), static_cast<off_t>(bytes)) != 0) return NoMemory(bytes, errno);
  if (bytes == 0) return memory;
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor(), 0);
  if (data == MAP_FAILED) return NoMemory(bytes, errno);
  memory.mapping_ = {data, bytes};
  return memory;
}

bool SharedMemory::IsHeld() const {
  struct stat facts;
  return file_ && (!IsAtItsPath() || ::fstat(descriptor(), &facts) != 0 || facts.st_nlink > 1);
}

}  // namespace cairn
