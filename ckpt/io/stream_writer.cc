#include "ckpt/io/stream_writer.h"

#include <algorithm>
#include <cstring>

namespace cairn {

Result<std::unique_ptr<StreamWriter>> StreamWriter::Create(FileSystem& fs, WriteRing& ring,
                                                           const std::string& path, uint64_t bytes) {
  const Direct direct = bytes % kPageBytes == 0 ? Direct::kAuto : Direct::kOff;
  CAIRN_ASSIGN_OR_RETURN(auto file, fs.Create(path, direct));
  return std::unique_ptr<StreamWriter>(new StreamWriter(ring, std::move(file)));
}

Status StreamWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!buffer_) buffer_ = ring_.Acquire();
    const uint64_t count = std::min<uint64_t>(bytes.size(), ring_.buffer_bytes() - buffer_->size);
    std::memcpy(buffer_->data() + buffer_->size, bytes.data(), count);
    buffer_->size += count;
    bytes_ += count;
    bytes = bytes.subspan(count);
    if (buffer_->size == ring_.buffer_bytes()) Flush();
  }
  return ring_.error();
}

Status StreamWriter::Skip(uint64_t bytes) {
  if (buffer_) Flush();
  bytes_ += bytes;
  submitted_ += bytes;
  return ring_.error();
}

void StreamWriter::Flush() {
  const uint64_t size = buffer_->size;
  ring_.Submit(file_.get(), submitted_, std::move(buffer_));
  submitted_ += size;
}

Status StreamWriter::Drain() {
  if (buffer_) Flush();
  return ring_.Drain();
}

Status StreamWriter::Finish() {
  CAIRN_RETURN_IF_ERROR(Drain());
  CAIRN_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

}  // namespace cairn
