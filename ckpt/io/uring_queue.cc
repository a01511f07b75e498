// io_uring: submissions and completions through memory shared with the kernel, no thread of ours asleep in a
// system call for each transfer.
//
// Not on FUSE, where threads do the same work: after a short direct transfer, Linux (6.18) does the rest at
// the offset where the whole began, and reports the whole length. The caller cannot see the error. Opening
// the file without O_DIRECT does not help, because the FUSE daemon can ask for direct transfers, too.
#include <liburing.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "ckpt/base/posix_error.h"
#include "ckpt/io/file_system.h"
#include "ckpt/io/io_queue.h"

namespace cairn {
namespace {

class UringQueue final : public IoQueue {
 public:
  static Result<std::unique_ptr<IoQueue>> Create(int depth) {
    auto queue = std::unique_ptr<UringQueue>(new UringQueue(depth));
    const int error = -::io_uring_queue_init(static_cast<unsigned>(depth), &queue->ring_, 0);
    if (error != 0) return NotSupported("io_uring: {}", strerror(error));
    queue->ready_ = true;
    return std::unique_ptr<IoQueue>(std::move(queue));
  }

  ~UringQueue() override {
    if (!ready_) return;
    while (in_flight_ > 0) (void)Wait();
    ::io_uring_queue_exit(&ring_);
  }

  void Write(File& file, uint64_t offset, std::span<const std::byte> bytes, uint64_t tag) override {
    Choose(file);
    if (threads_) return threads_->Write(file, offset, bytes, tag);
    Start({&file, true, offset, const_cast<std::byte*>(bytes.data()), bytes.size(), tag});
  }
  void Read(File& file, uint64_t offset, std::span<std::byte> bytes, uint64_t tag) override {
    Choose(file);
    if (threads_) return threads_->Read(file, offset, bytes, tag);
    Start({&file, false, offset, bytes.data(), bytes.size(), tag});
  }

  Completion Wait() override {
    if (threads_) return threads_->Wait();
    while (true) {
      io_uring_cqe* cqe = nullptr;
      const int error = -::io_uring_wait_cqe(&ring_, &cqe);
      if (error == EINTR || error == EAGAIN) continue;
      if (error != 0) return Finish(AnyInFlight(), IoError("io_uring: {}", strerror(error)));
      const auto slot = static_cast<size_t>(::io_uring_cqe_get_data64(cqe));
      const int result = cqe->res;
      ::io_uring_cqe_seen(&ring_, cqe);
      if (result == -ECANCELED) return Finish(slot, DoHere(slots_[slot]));
      if (std::optional<Status> status = Advance(slots_[slot], result))
        return Finish(slot, std::move(*status));
      Submit(slot);  // interrupted or short: transfer the rest
    }
  }

  // Looks only at the completions, which the submitting side does not touch.
  void AwaitOne() override {
    if (threads_) return threads_->AwaitOne();
    io_uring_cqe* cqe = nullptr;
    for (int error = EINTR; error == EINTR || error == EAGAIN;) error = -::io_uring_wait_cqe(&ring_, &cqe);
  }

  int in_flight() const override { return threads_ ? threads_->in_flight() : in_flight_; }
  int depth() const override { return static_cast<int>(slots_.size()); }
  const std::string& engine() const override { return threads_ ? threads_->engine() : engine_; }

 private:
  struct Transfer {
    File* file = nullptr;  // null: the slot is free
    bool write = false;
    uint64_t offset = 0;
    std::byte* data = nullptr;
    size_t left = 0;
    uint64_t tag = 0;
  };

  explicit UringQueue(int depth) : slots_(depth) {}

  // By the first file: those of one queue lie on one file system.
  void Choose(File& file) {
    if (std::exchange(chosen_, true)) return;
    struct statfs st;
    if (::fstatfs(file.descriptor(), &st) == 0 && st.f_type == FUSE_SUPER_MAGIC)
      threads_ = NewThreadQueue(depth(), "threads (FUSE)");
  }

  void Start(Transfer transfer) {
    const auto free = std::ranges::find(slots_, nullptr, &Transfer::file);
    const auto slot = static_cast<size_t>(free - slots_.begin());
    slots_[slot] = transfer;
    ++in_flight_;
    Submit(slot);
  }

  void Submit(size_t slot) {
    const Transfer& t = slots_[slot];
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);  // one per slot
    if (t.write)
      ::io_uring_prep_write(sqe, t.file->descriptor(), t.data, static_cast<unsigned>(t.left), t.offset);
    else
      ::io_uring_prep_read(sqe, t.file->descriptor(), t.data, static_cast<unsigned>(t.left), t.offset);
    ::io_uring_sqe_set_data64(sqe, slot);
    for (int result = -EINTR; result == -EINTR || result == -EAGAIN;) result = ::io_uring_submit(&ring_);
  }

  // The outcome, or nothing while the transfer is unfinished.
  static std::optional<Status> Advance(Transfer& t, int result) {
    if (result == -EINTR || result == -EAGAIN) return std::nullopt;
    const size_t done = result > 0 ? WholeTransfer(*t.file, result) : 0;
    if (done == 0 && t.left > 0)
      return TransferError(t.write, t.file->path(), t.offset, t.left, result < 0 ? -result : 0);
    t.data += done;
    t.offset += done;
    t.left -= done;
    return t.left == 0 ? std::optional(OkStatus()) : std::nullopt;
  }

  // The kernel cancels a transfer for which it cannot start a worker, for example under pressure of memory.
  static Status DoHere(const Transfer& t) {
    return t.write ? t.file->WriteAt(t.offset, {t.data, t.left}) : t.file->ReadAt(t.offset, {t.data, t.left});
  }

  size_t AnyInFlight() const {
    const auto used = std::ranges::find_if(slots_, [](const Transfer& t) { return t.file != nullptr; });
    return static_cast<size_t>(used - slots_.begin());
  }

  Completion Finish(size_t slot, Status status) {
    --in_flight_;
    return {std::exchange(slots_[slot], Transfer{}).tag, std::move(status)};
  }

  io_uring ring_{};
  bool ready_ = false;
  std::vector<Transfer> slots_;
  int in_flight_ = 0;
  const std::string engine_ = "io_uring";
  bool chosen_ = false;
  std::unique_ptr<IoQueue> threads_;  // in place of the ring
};

}  // namespace

Result<std::unique_ptr<IoQueue>> NewUringQueue(int depth) { return UringQueue::Create(depth); }

}  // namespace cairn
