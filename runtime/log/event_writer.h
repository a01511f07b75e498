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

#include "runtime/log/log_file.h"

namespace cairn {

// Not thread-safe. The destructor drops what was not flushed.
class EventWriter {
 public:
  // Starts a new file in `directory`, which is made if it is missing:
  // events.out.tfevents.<unix seconds>.<host>.<pid>. A resumed run therefore never touches the file of the
  // one before; TensorBoard joins them by step. Errors: NoSpace, IoError.
  static Result<EventWriter> Open(const std::string& directory);

  // Buffered until Flush, as LogFile says.
  void AddScalar(std::string_view tag, int64_t step, float value, double wall_time_seconds = Now());
  void Flush();

  int64_t pending() const { return pending_; }  // scalars since the last Flush that worked
  const std::string& path() const { return file_->path(); }

 private:
  static double Now();  // in seconds since 1970
  explicit EventWriter(std::unique_ptr<LogFile> file) : file_(std::move(file)) {}

  std::unique_ptr<LogFile> file_;
  int64_t pending_ = 0;
};

}  // namespace cairn
