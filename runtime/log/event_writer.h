// Scalars as TensorBoard event files, readable by the tensorboard package.
//
// A file is a row of TFRecords: u64 length, masked CRC-32C of the length, data, masked CRC-32C of the data,
// all little-endian. The data is a protobuf Event (tensorflow/core/util/event.proto), encoded here by hand:
// wall_time = 1 (double), step = 2 (varint), file_version = 3 or summary = 5, whose value = 1 has tag = 1 and
// simple_value = 2.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// Not thread-safe. The destructor drops what was not flushed.
class EventWriter {
 public:
  static constexpr size_t kMaxPendingBytes = 1 << 20;

  // Starts a new file in `directory` (made where missing), events.out.tfevents.<unix seconds>.<host>.<pid>,
  // so that a resumed run never touches the file of the one before; TensorBoard joins them by step. Errors:
  // NoSpace, IoError.
  static Result<EventWriter> Open(FileSystem& fs, const std::string& directory);

  // Buffered until Flush; given up, and counted, where kMaxPendingBytes wait already.
  void AddScalar(std::string_view tag, int64_t step, float value);
  void AddScalar(std::string_view tag, int64_t step, float value, double wall_time_seconds);
  // Hands the records to the operating system, whole ones only, but does not sync them. Errors: NoSpace,
  // IoError; the records stay buffered and the next Flush writes them at the same place.
  Status Flush();

  int64_t pending() const { return pending_scalars_; }  // scalars that wait for Flush
  int64_t lost() const { return lost_; }                // scalars given up

  const std::string& path() const { return file_->path(); }

 private:
  explicit EventWriter(std::unique_ptr<File> file) : file_(std::move(file)) {}

  std::unique_ptr<File> file_;
  uint64_t written_bytes_ = 0;
  std::string pending_;
  int64_t pending_scalars_ = 0;
  int64_t lost_ = 0;
};

}  // namespace cairn
