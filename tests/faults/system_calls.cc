#include "tests/faults/system_calls.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>

#include "tests/faults/checkpoints.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

enum class Call {
  kOpen,
  kWrite,
  kRead,
  kSync,
  kClose,
  kAllocate,
  kResize,
  kUring,
  kRename,
  kExchange,
  kUnlink,
  kMakeDir,
  kCount
};
constexpr const char* kNames[] = {"open",      "pwrite",   "pread",  "fsync",     "close",  "fallocate",
                                  "ftruncate", "io_uring", "rename", "renameat2", "unlink", "mkdir"};
static_assert(std::size(kNames) == static_cast<size_t>(Call::kCount));
constexpr int kRefusals[] = {EIO, ENOSPC, EDQUOT};
constexpr int kShort = -1;  // instead of an errno: half of the transfer

// Which call of a kind fails, and how. Counted from the arming on; off again after it.
class Injector {
 public:
  void Arm(Call call, int64_t at, int error) {
    const std::lock_guard lock(mutex_);
    call_ = call, left_ = at, error_ = error;
    fired_ = synced_again_ = false;
    condemned_.clear();
  }
  // 0: do it as always.
  int Next(Call call) {
    const std::lock_guard lock(mutex_);
    if (call != call_ || left_ < 0 || left_-- > 0) return 0;
    fired_ = true;
    return error_;
  }
  void Synced(int fd, bool failed) {
    struct stat st = {};
    (void)::fstat(fd, &st);
    const std::lock_guard lock(mutex_);
    synced_again_ |= !S_ISDIR(st.st_mode) && condemned_.contains(st.st_ino);
    if (failed) condemned_.insert(st.st_ino);
  }
  Call call() {
    const std::lock_guard lock(mutex_);
    return call_;
  }
  bool fired() const { return fired_; }
  bool synced_again() const { return synced_again_; }

 private:
  std::mutex mutex_;
  Call call_ = Call::kCount;
  int64_t left_ = -1;
  int error_ = 0;
  bool fired_ = false;
  bool synced_again_ = false;
  std::set<ino_t> condemned_;
};

Injector& TheInjector() {
  static Injector injector;
  return injector;
}

// Fails with the injected error, or runs the real call.
template <typename Real>
auto Through(Call call, Real real) -> decltype(real()) {
  const int error = TheInjector().Next(call);
  if (error <= 0) return real();
  errno = error;
  return -1;
}

// The same for transfers, which may also be cut short.
template <typename Real>
ssize_t TransferBytes(Call call, size_t bytes, Real real) {
  const int error = TheInjector().Next(call);
  if (error == kShort) return real(bytes > 1 ? bytes / 2 : bytes);
  if (error == 0) return real(bytes);
  errno = error;
  return -1;
}

}  // namespace
}  // namespace cairn

// ---- Replacements that the linker puts in place of the calls ----

extern "C" {
using cairn::Call;

int __real_open(const char* path, int flags, mode_t mode);
ssize_t __real_pwrite(int fd, const void* data, size_t bytes, off_t offset);
ssize_t __real_pread(int fd, void* data, size_t bytes, off_t offset);
int __real_fsync(int fd);
int __real_close(int fd);
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_ftruncate(int fd, off_t bytes);
int __real_io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags);
int __real_io_uring_submit(io_uring* ring);
int __real_rename(const char* from, const char* to);
int __real_renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags);
int __real_unlink(const char* path);
int __real_mkdir(const char* path, mode_t mode);

int __wrap_open(const char* path, int flags, mode_t mode) {
  return cairn::Through(Call::kOpen, [&] { return __real_open(path, flags, mode); });
}
ssize_t __wrap_pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return cairn::TransferBytes(Call::kWrite, bytes,
                              [&](size_t n) { return __real_pwrite(fd, data, n, offset); });
}
ssize_t __wrap_pread(int fd, void* data, size_t bytes, off_t offset) {
  return cairn::TransferBytes(Call::kRead, bytes,
                              [&](size_t n) { return __real_pread(fd, data, n, offset); });
}
int __wrap_fsync(int fd) {
  const int result = cairn::Through(Call::kSync, [&] { return __real_fsync(fd); });
  const int error = errno;
  cairn::TheInjector().Synced(fd, result != 0 && error != EINTR);
  errno = error;
  return result;
}
int __wrap_close(int fd) {
  const int result = __real_close(fd);  // a failed close still closes
  return result != 0 ? result : cairn::Through(Call::kClose, [] { return 0; });
}
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return cairn::Through(Call::kAllocate, [&] { return __real_fallocate(fd, mode, offset, bytes); });
}
int __wrap_ftruncate(int fd, off_t bytes) {
  return cairn::Through(Call::kResize, [&] { return __real_ftruncate(fd, bytes); });
}
// Refused, so that transfers go through pread and pwrite, unless it is io_uring's turn.
int __wrap_io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  return cairn::TheInjector().call() == Call::kUring ? __real_io_uring_queue_init(entries, ring, flags)
                                                     : -ENOSYS;
}
// Spoils the last submission on its way to the kernel, which then cuts it short or refuses it (EBADF).
int __wrap_io_uring_submit(io_uring* ring) {
  const int error = cairn::TheInjector().Next(Call::kUring);
  if (error == EINTR) return -EINTR;
  if (error != 0) {
    io_uring_sqe& last = ring->sq.sqes[(ring->sq.sqe_tail - 1) & ring->sq.ring_mask];
    if (error == cairn::kShort)
      last.len /= 2;
    else
      last.fd = -1;
  }
  return __real_io_uring_submit(ring);
}
int __wrap_rename(const char* from, const char* to) {
  return cairn::Through(Call::kRename, [&] { return __real_rename(from, to); });
}
int __wrap_renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  return cairn::Through(Call::kExchange, [&] { return __real_renameat2(from_fd, from, to_fd, to, flags); });
}
int __wrap_unlink(const char* path) {
  return cairn::Through(Call::kUnlink, [&] { return __real_unlink(path); });
}
int __wrap_mkdir(const char* path, mode_t mode) {
  return cairn::Through(Call::kMakeDir, [&] { return __real_mkdir(path, mode); });
}
}

namespace cairn {
namespace {

// What must hold after a call of this kind failed. EINVAL: a file system without renames with flags.
bool MustSucceed(Call call, int error) {
  return error == kShort || error == EINVAL || (error == EINTR && call != Call::kClose);
}

// A step saved over another one of the same number, read back, and the older ones retired.
Status SaveReadPrune(const std::string& run_dir, const StepRecipe& recipe, bool& committed) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_RETURN_IF_ERROR(MakeStep(fs, run_dir, recipe));
  committed = true;
  CAIRN_ASSIGN_OR_RETURN(const Content found, ReadWhole(fs, JoinPath(run_dir, StepDirName(recipe.step))));
  if (found != ContentOf(recipe)) return Corrupt("read back: other values");
  return ApplyRetention(fs, run_dir, {.keep_last = 1}, recipe.nonce);
}

// The complaint. `fired`: false if there were fewer calls.
std::string TryCall(Call call, int64_t at, int error, bool& fired) {
  const TempDir temp(TempDir::Place::kMemory);
  const std::string run_dir = temp / "run";
  FileSystem& fs = FileSystem::Posix();
  const StepRecipe before = SmallRecipe({2, 1, 1, 0}, 90, 1), old = SmallRecipe({2, 1, 1, 0}, 100, 2),
                   anew = SmallRecipe({2, 1, 1, 0}, 100, 3);
  if (!MakeStep(fs, run_dir, before).ok() || !MakeStep(fs, run_dir, old).ok()) return "cannot set up";
  bool committed = false;
  TheInjector().Arm(call, at, error);
  const Status status = SaveReadPrune(run_dir, anew, committed);
  fired = TheInjector().fired();
  TheInjector().Arm(Call::kCount, -1, 0);
  if (!fired) return "";

  const auto named = [&](const std::string& trouble) {
    return fmt::format("{} number {} with {}: {}; the work returned: {}", kNames[static_cast<int>(call)], at,
                       error == kShort ? "half a transfer" : strerror(error), trouble,
                       status.ok() ? "success" : status.message());
  };
  if (TheInjector().synced_again()) return named("synced again after a failure");
  if (MustSucceed(call, error) && !status.ok()) return named("it should have continued");
  const auto check = [&]() -> std::string {
    std::vector<std::string> damaged;
    const auto found = Resume(fs, run_dir, &damaged);
    if (!damaged.empty()) return damaged[0];
    const bool good = found == ContentOf(anew) || (!committed && found == ContentOf(old));
    return good ? "" : "neither the old step nor the new one";
  };
  if (const std::string trouble = check(); !trouble.empty()) return named(trouble);
  Committer(fs, run_dir, anew.step, anew.nonce).Abandon();
  if (const Status cleaned = CleanLeftovers(fs, run_dir); !cleaned.ok()) return named(cleaned.message());
  if (const std::string trouble = check(); !trouble.empty()) return named("cleaned up: " + trouble);
  return "";
}

}  // namespace

void RunSystemCalls(uint64_t first_seed, const GoalOptions& options, Tally& tally) {
  constexpr uint64_t kSeedsPerError = 1000;  // more than the calls of any kind
  uint64_t begin = first_seed;
  for (int kind = 0; kind < static_cast<int>(Call::kCount); ++kind) {
    const Call call = static_cast<Call>(kind);
    const bool transfer = call == Call::kWrite || call == Call::kRead || call == Call::kUring;
    for (const int error : {EIO, ENOSPC, EDQUOT, EINTR, EINVAL, kShort}) {
      if (error == kShort && !transfer) continue;
      if (error == EINVAL && call != Call::kExchange) continue;
      const auto of_three = std::ranges::find(kRefusals, error);  // in the quick form by turns
      const bool all = options.form != GoalOptions::Form::kQuick || of_three == std::end(kRefusals);
      bool fired = true;
      for (int64_t n = 0; fired; ++n) {
        if (!all && n % 3 != of_three - kRefusals) continue;
        const uint64_t seed = begin + static_cast<uint64_t>(n);
        const int64_t at = n * (transfer ? 5 : 1);
        const std::string trouble = TryCall(call, at, error, fired);
        if (fired && (!options.seed || *options.seed == seed)) tally.Add(seed, trouble);
        if (at == 0 && !fired && call != Call::kUring)  // which some kernels refuse
          tally.Add(seed, fmt::format("{} is never called", kNames[kind]));
      }
      begin += kSeedsPerError;
    }
  }
}

}  // namespace cairn
