// A pool with one thread for each transfer that may be in flight, and a queue of completions. The count in
// flight is the submitter's own and needs no lock. If no thread could be started, Submit() does the transfer
// itself, and Wait() finds it finished.

#include <condition_variable>
#include <deque>
#include <mutex>

#include "ckpt/base/threads.h"
#include "ckpt/base/worker_pool.h"
#include "ckpt/io/file_system.h"
#include "ckpt/io/io_queue.h"

namespace cairn {
namespace {

class ThreadQueue final : public IoQueue {
 public:
  ThreadQueue(int depth, std::string engine) : depth_(depth), engine_(std::move(engine)), pool_(depth) {}
  ~ThreadQueue() override {
    while (in_flight_ > 0) (void)Wait();
  }

  void Write(File& file, uint64_t offset, std::span<const std::byte> bytes, uint64_t tag) override {
    Submit({&file, offset, bytes, {}, tag});
  }
  void Read(File& file, uint64_t offset, std::span<std::byte> bytes, uint64_t tag) override {
    Submit({&file, offset, {}, bytes, tag});
  }

  Completion Wait() override {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return !completions_.empty(); });
    Completion completion = std::move(completions_.front());
    completions_.pop_front();
    --in_flight_;
    return completion;
  }

  void AwaitOne() override {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return !completions_.empty(); });
  }

  int in_flight() const override { return in_flight_; }
  int depth() const override { return depth_; }
  const std::string& engine() const override { return engine_; }

 private:
  struct Job {
    File* file;
    uint64_t offset;
    std::span<const std::byte> write;  // one of the two is empty
    std::span<std::byte> read;
    uint64_t tag;
  };

  void Submit(Job job) {
    ++in_flight_;
    (void)pool_.Push([this, job](size_t) {
      Status status = Caught([&] { return Run(job); });
      const std::lock_guard lock(mutex_);
      completions_.push_back({job.tag, std::move(status)});
      finished_.notify_one();
      return OkStatus();  // an error goes to the submitter and ends nothing here
    });
  }

  static Status Run(const Job& job) {
    return job.read.empty() ? job.file->WriteAt(job.offset, job.write)
                            : job.file->ReadAt(job.offset, job.read);
  }

  const int depth_;
  const std::string engine_;
  int in_flight_ = 0;  // the submitter's own count
  std::mutex mutex_;
  std::condition_variable finished_;
  std::deque<Completion> completions_;
  WorkerPool pool_;  // last: it uses the others
};

}  // namespace

std::unique_ptr<IoQueue> NewThreadQueue(int depth, std::string engine) {
  return std::make_unique<ThreadQueue>(depth, std::move(engine));
}

}  // namespace cairn
