// Reads a text file line by line in bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// A line, or a part of one that is longer than kMaxLinePieceBytes.
struct LinePiece {
  std::string_view text;   // with its newline, if it has one; valid until the next call
  bool ends_line = false;  // false: the next piece continues the same line
};

inline constexpr uint64_t kMaxLinePieceBytes = 1 << 20;

class LineReader {
 public:
  // Errors: NotFound, IoError; InvalidArgument for a directory.
  static Result<LineReader> Open(FileSystem& fs, const std::string& path);

  // False at the end of the file. A long line is cut before a space, or else between two UTF-8 characters.
  Result<bool> Next(LinePiece* piece);

  uint64_t line_number() const { return line_number_; }  // of the last piece; the first line is 1
  uint64_t bytes_read() const { return file_offset_ - (buffer_.size() - begin_); }
  uint64_t file_bytes() const { return file_bytes_; }
  const std::string& path() const { return file_->path(); }

 private:
  LineReader(std::unique_ptr<File> file, uint64_t file_bytes)
      : file_(std::move(file)), file_bytes_(file_bytes) {}

  Status Fill();

  std::unique_ptr<File> file_;
  uint64_t file_bytes_;
  uint64_t file_offset_ = 0;  // where the next block of the file begins
  std::string buffer_;
  size_t begin_ = 0;  // of the bytes that were not handed out yet
  uint64_t line_number_ = 0;
  bool line_ended_ = true;
};

}  // namespace cairn
