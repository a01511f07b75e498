#include "ckpt/write_ring.h"

#include <new>
#include <utility>

namespace cairn {

WriteRing::Buffer::Buffer(uint64_t bytes)
    : data_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPageBytes}))) {}

WriteRing::WriteRing(const WriteRingOptions& options) : options_(options) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
}

WriteRing::~WriteRing() {
  (void)Drain();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<WriteRing::Buffer> WriteRing::Acquire() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty() || in_flight_ < options_.in_flight; });
  if (free_.empty()) return std::make_unique<Buffer>(options_.buffer_bytes);
  auto buffer = std::move(free_.back());
  free_.pop_back();
  buffer->size = 0;
  return buffer;
}

void WriteRing::Submit(File* file, uint64_t offset, std::unique_ptr<Buffer> buffer) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return in_flight_ < options_.in_flight; });
    ++in_flight_;
    jobs_.push_back({file, offset, std::move(buffer)});
  }
  changed_.notify_all();
}

Status WriteRing::error() {
  const std::lock_guard lock(mutex_);
  return status_;
}

Status WriteRing::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return in_flight_ == 0; });
  return std::exchange(status_, OkStatus());
}

void WriteRing::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (status_.ok()) {
      lock.unlock();
      Status status = job.file->WriteAt(job.offset, {job.buffer->data(), job.buffer->size});
      lock.lock();
      if (status_.ok()) status_ = std::move(status);
    }
    free_.push_back(std::move(job.buffer));
    --in_flight_;
    changed_.notify_all();
  }
}

}  // namespace cairn
