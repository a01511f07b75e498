#include "runtime/text/line_reader.h"

#include <algorithm>

namespace cairn {
namespace {

// Where to cut a text that has no newline.
size_t CutPoint(std::string_view text) {
  const size_t space = text.rfind(' ');
  if (space != std::string_view::npos && space > 0) return space;
  const auto continues_character = [&](size_t i) { return (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80; };
  size_t cut = text.size() - 1;  // at most three bytes back: longer sequences are not UTF-8
  for (int i = 0; i < 3 && continues_character(cut); ++i) --cut;
  return cut;
}

}  // namespace

Result<LineReader> LineReader::Open(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (info.is_directory()) return InvalidArgument("{} is a directory; name the text files in it", path);
  CAIRN_ASSIGN_OR_RETURN(auto file, fs.OpenForRead(path));
  return LineReader(std::move(file), info.bytes);
}

Status LineReader::Fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const uint64_t count = std::min(kMaxLinePieceBytes, file_bytes_ - file_offset_);
  const size_t kept = buffer_.size();
  buffer_.resize(kept + count);
  CAIRN_RETURN_IF_ERROR(
      file_->ReadAt(file_offset_, std::as_writable_bytes(std::span(buffer_).subspan(kept))));
  file_offset_ += count;
  return OkStatus();
}

Result<bool> LineReader::Next(LinePiece* piece) {
  for (;;) {
    const std::string_view rest = std::string_view(buffer_).substr(begin_);
    const size_t newline = rest.substr(0, kMaxLinePieceBytes).find('\n');
    const bool at_end = file_offset_ == file_bytes_;
    size_t size = 0;
    if (newline != std::string_view::npos) {
      size = newline + 1;
    } else if (rest.size() > kMaxLinePieceBytes) {
      size = CutPoint(rest.substr(0, kMaxLinePieceBytes));
    } else if (at_end) {
      size = rest.size();
    }
    if (size > 0) {
      if (line_ended_) ++line_number_;
      *piece = {rest.substr(0, size), newline != std::string_view::npos || (at_end && size == rest.size())};
      line_ended_ = piece->ends_line;
      begin_ += size;
      return true;
    }
    if (at_end) return false;
    CAIRN_RETURN_IF_ERROR(Fill());
  }
}

}  // namespace cairn
