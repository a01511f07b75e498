// Documents of text files and JSON lines, handed out in chunks so that a file of any size fits in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"
#include "runtime/text/line_reader.h"

namespace cairn {

enum class TextFormat {
  kAuto,       // JSON lines if the name ends in .jsonl, .ndjson or .json; else text
  kText,       // a file is a document, or its paragraphs are (split_on_blank_lines)
  kJsonLines,  // a line is a document: an object with the text under json_key
};

struct TextSourceOptions {
  TextFormat format = TextFormat::kAuto;
  std::string json_key = "text";
  bool split_on_blank_lines = false;  // text only: blank lines separate documents and belong to none
};

// A part of a document. A document of plain text is cut at the end of a line once it exceeds
// kMaxLinePieceBytes.
struct TextChunk {
  std::string text;
  bool ends_document = false;
};

inline constexpr uint64_t kMaxJsonLineBytes = 256 << 20;  // a line is parsed as a whole

class TextSource {
 public:
  // Errors: NotFound, IoError, InvalidArgument (a directory): found before the first document is read.
  static Result<TextSource> Open(FileSystem& fs, std::vector<std::string> paths, TextSourceOptions options);

  // False after the last document. Errors: IoError; Corrupt naming a line that is not JSON or has no text.
  Result<bool> Next(TextChunk* chunk);

  uint64_t bytes_read() const { return finished_bytes_ + (reader_ ? reader_->bytes_read() : 0); }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  TextSource(FileSystem& fs, std::vector<std::string> paths, TextSourceOptions options)
      : fs_(&fs), paths_(std::move(paths)), options_(std::move(options)) {}

  bool CurrentIsJson() const;
  Result<bool> NextOfFile(TextChunk* chunk);
  Result<bool> NextText(TextChunk* chunk);
  Result<bool> NextJson(TextChunk* chunk);
  Result<std::string> ReadLine();

  FileSystem* fs_;
  std::vector<std::string> paths_;
  TextSourceOptions options_;
  size_t next_path_ = 0;
  std::optional<LineReader> reader_;  // of paths_[next_path_ - 1]
  std::string pending_;               // lines that wait for the next chunk
  bool at_line_start_ = true;         // not in the middle of a long line
  bool in_document_ = false;
  uint64_t finished_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace cairn
