#include "ckpt/io/write_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn {

WriteRing::WriteRing(FileSystem& fs, const WriteRingOptions& options)
    : options_(options), queue_(fs.NewQueue({.depth = options.in_flight})) {}

WriteRing::~WriteRing() { (void)Drain(); }

void WriteRing::Reap(std::unique_lock<std::mutex>& lock) {
  if (reaping_) {
    reaped_.wait(lock, [this, before = reaps_] { return reaps_ != before; });
    return;
  }
  reaping_ = true;
  lock.unlock();
  queue_->AwaitOne();
  lock.lock();
  IoQueue::Completion done = queue_->Wait();
  if (status_.ok()) status_ = std::move(done.status);
  const auto found = writing_.find(done.tag);
  free_.push_back(std::move(found->second));
  writing_.erase(found);
  reaping_ = false;
  ++reaps_;
  reaped_.notify_all();
}

std::unique_ptr<WriteRing::Buffer> WriteRing::Acquire() {
  std::unique_lock lock(mutex_);
  while (free_.empty() && queue_->in_flight() == queue_->depth()) Reap(lock);
  if (free_.empty()) return std::make_unique<Buffer>(options_.buffer_bytes);
  auto buffer = std::move(free_.back());
  free_.pop_back();
  buffer->size = 0;
  return buffer;
}

void WriteRing::Submit(File* file, uint64_t offset, std::unique_ptr<Buffer> buffer) {
  std::unique_lock lock(mutex_);
  while (queue_->in_flight() == queue_->depth()) Reap(lock);
  if (!status_.ok()) {
    free_.push_back(std::move(buffer));
    return;
  }
  const std::span bytes(buffer->data(), buffer->size);
  writing_.emplace(next_tag_, std::move(buffer));
  queue_->Write(*file, offset, bytes, next_tag_++);
}

Status WriteRing::error() {
  const std::lock_guard lock(mutex_);
  return status_;
}

uint64_t WriteRing::Mark() {
  const std::lock_guard lock(mutex_);
  return next_tag_;
}

Status WriteRing::Await(uint64_t mark) {
  std::unique_lock lock(mutex_);
  while (!writing_.empty() && writing_.begin()->first < mark) Reap(lock);
  return status_;
}

void SequentialWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!buffer_) buffer_ = ring_.Acquire();
    const size_t count = std::min<uint64_t>(bytes.size(), ring_.buffer_bytes() - buffer_->size);
    std::memcpy(buffer_->data() + buffer_->size, bytes.data(), count);
    buffer_->size += count;
    offset_ += count;
    bytes = bytes.subspan(count);
    if (buffer_->size == ring_.buffer_bytes()) Flush();
  }
}

void SequentialWriter::Flush() {
  if (!buffer_) return;
  const uint64_t begin = offset_ - buffer_->size;
  ring_.Submit(file_, begin, std::move(buffer_));
}

void SequentialWriter::FlushPage() {
  if (!buffer_) return;
  const uint64_t padding = PageUp(buffer_->size) - buffer_->size;
  std::memset(buffer_->data() + buffer_->size, 0, padding);
  buffer_->size += padding;
  offset_ += padding;
  Flush();
}

}  // namespace cairn
