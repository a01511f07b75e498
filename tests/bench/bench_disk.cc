// A transfer is cut into blocks, which the engine takes in order: threads by a shared counter, io_uring by
// refilling a ring of `depth` requests. A request that io_uring serves only in part is completed by pread or
// pwrite. The time of a raw write includes the fsync, for only then is the file durable. Whether a file is
// cold or warm is never assumed: mincore counts its resident pages, and a state that cannot be reached is an
// error.

#include "tests/bench/bench_disk.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "ckpt/base/posix_error.h"
#include "ckpt/base/unique_fd.h"
#include "ckpt/io/file_system.h"
#include "tests/bench/bench_rounds.h"

namespace cairn {
namespace {

Result<UniqueFd> OpenScratch(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!fd.ok()) return PosixError("open", path, errno);
  return fd;
}

// One transfer of `bytes` of the buffer at `data` from or to the same offset of the file.
struct DiskJob {
  int fd;
  std::byte* data;
  uint64_t bytes;
  bool write;
};

// Whole, or errno.
int TransferBlock(const DiskJob& job, uint64_t begin, uint64_t end) {
  while (begin < end) {
    const auto at = static_cast<off_t>(begin);
    const ssize_t n = job.write ? ::pwrite(job.fd, job.data + begin, end - begin, at)
                                : ::pread(job.fd, job.data + begin, end - begin, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    begin += n;
  }
  return 0;
}

int TransferByThreads(const DiskJob& job, const RawTransfer& how) {
  std::atomic<uint64_t> next = 0;
  std::atomic<int> error = 0;
  const auto work = [&] {
    for (uint64_t at; (at = next.fetch_add(how.block)) < job.bytes && error == 0;)
      if (const int e = TransferBlock(job, at, std::min(at + how.block, job.bytes)); e != 0) error = e;
  };
  std::vector<std::jthread> workers;
  for (int i = 1; i < how.depth; ++i) workers.emplace_back(work);
  work();
  workers.clear();  // joins
  return error;
}

class Ring {
 public:
  explicit Ring(int depth) : error_(io_uring_queue_init(depth, &ring_, 0)) {}
  ~Ring() {
    if (error_ == 0) io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  int error() const { return -error_; }
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_;
  int error_;
};

int TransferByUring(const DiskJob& job, const RawTransfer& how) {
  Ring ring(how.depth);
  if (ring.error() != 0) return ring.error();
  uint64_t next = 0;
  int error = 0;
  for (int in_flight = 0; in_flight > 0 || (next < job.bytes && error == 0);) {
    for (; in_flight < how.depth && next < job.bytes && error == 0; ++in_flight) {
      const auto size = static_cast<unsigned>(std::min(how.block, job.bytes - next));
      io_uring_sqe* sqe = io_uring_get_sqe(ring.get());
      if (job.write)
        io_uring_prep_write(sqe, job.fd, job.data + next, size, next);
      else
        io_uring_prep_read(sqe, job.fd, job.data + next, size, next);
      io_uring_sqe_set_data64(sqe, next);
      next += size;
    }
    const int submitted = io_uring_submit_and_wait(ring.get(), 1);
    if (submitted < 0 && submitted != -EINTR) return -submitted;
    for (io_uring_cqe* cqe; io_uring_peek_cqe(ring.get(), &cqe) == 0; --in_flight) {
      const uint64_t begin = io_uring_cqe_get_data64(cqe);
      const uint64_t end = std::min(begin + how.block, job.bytes);
      if (cqe->res <= 0)
        error = cqe->res < 0 ? -cqe->res : EIO;
      else if (begin + cqe->res < end)  // after a short transfer: the rest by pread or pwrite
        error = TransferBlock(job, begin + cqe->res, end);
      io_uring_cqe_seen(ring.get(), cqe);
    }
  }
  return error;
}

int RunJob(const DiskJob& job, const RawTransfer& how) {
  return how.engine == RawTransfer::Engine::kUring ? TransferByUring(job, how) : TransferByThreads(job, how);
}

// Bytes of `path` that lie in the page cache.
Result<uint64_t> ResidentBytes(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(UniqueFd file, OpenScratch(path, O_RDONLY));
  struct stat st;
  if (::fstat(file.get(), &st) != 0) return PosixError("find", path, errno);
  const auto bytes = static_cast<uint64_t>(st.st_size);
  if (bytes == 0) return uint64_t{0};
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (map == MAP_FAILED) return PosixError("map", path, errno);
  std::vector<unsigned char> pages((bytes + kPageBytes - 1) / kPageBytes);
  const int result = ::mincore(map, bytes, pages.data());
  const int error = errno;
  ::munmap(map, bytes);
  if (result != 0) return PosixError("look up pages of", path, error);
  return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }) * kPageBytes;
}

}  // namespace

Result<bool> TakesDirect(const std::string& directory) {
  const ScratchFile file(directory);
  CAIRN_ASSIGN_OR_RETURN(const auto probe, FileSystem::Posix().Create(file.path(), Direct::kAuto));
  return probe->direct();
}

bool TakesUring() { return Ring(1).error() == 0; }

ScratchFile::ScratchFile(const std::string& directory) {
  static std::atomic<int> count = 0;
  path_ = JoinPath(directory, fmt::format("cairn-bench-{}-{}", ::getpid(), ++count));
}

ScratchFile::~ScratchFile() { ::unlink(path_.c_str()); }

Result<double> RawWrite(const std::string& path, std::span<const std::byte> bytes, const RawTransfer& how) {
  const Stopwatch watch;
  CAIRN_ASSIGN_OR_RETURN(UniqueFd file,
                         OpenScratch(path, O_RDWR | O_CREAT | O_EXCL | (how.direct ? O_DIRECT : 0)));
  const int reserved = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes.size()));
  if (reserved != 0 && reserved != EOPNOTSUPP && reserved != EINVAL)
    return PosixError("reserve space for", path, reserved);
  const DiskJob job{file.get(), const_cast<std::byte*>(bytes.data()), bytes.size(), true};
  if (const int error = RunJob(job, how); error != 0) return PosixError("write", path, error);
  if (::fsync(file.get()) != 0) return PosixError("fsync", path, errno);
  file = UniqueFd();  // closed within the time
  return watch.Seconds();
}

Result<double> RawRead(const std::string& path, std::span<std::byte> bytes, const RawTransfer& how) {
  const Stopwatch watch;
  CAIRN_ASSIGN_OR_RETURN(UniqueFd file, OpenScratch(path, O_RDONLY | (how.direct ? O_DIRECT : 0)));
  const DiskJob job{file.get(), bytes.data(), bytes.size(), false};
  if (const int error = RunJob(job, how); error != 0) return PosixError("read", path, error);
  file = UniqueFd();  // closed within the time
  return watch.Seconds();
}

Status MakeCold(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(UniqueFd file, OpenScratch(path, O_RDONLY));
  if (::fsync(file.get()) != 0) return PosixError("fsync", path, errno);
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  CAIRN_ASSIGN_OR_RETURN(const uint64_t left, ResidentBytes(path));
  if (left == 0) return OkStatus();
  return IoError("{}: {} bytes stay in the page cache, so a cold read cannot be timed in this directory",
                 path, left);
}

Status MakeWarm(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, FileSystem::Posix().Stat(path));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd file, OpenScratch(path, O_RDONLY));
  std::vector<std::byte> window(1 << 20);
  ssize_t n;
  while ((n = ::read(file.get(), window.data(), window.size())) > 0 || (n < 0 && errno == EINTR)) {
  }
  if (n < 0) return PosixError("read", path, errno);
  CAIRN_ASSIGN_OR_RETURN(const uint64_t resident, ResidentBytes(path));
  if (resident >= info.bytes / 100 * 99) return OkStatus();
  return IoError("{}: only {} of {} bytes stay in the page cache; take a smaller --bytes", path, resident,
                 info.bytes);
}

}  // namespace cairn
