// Every file is opened once at the start: a missing one is found before the first document. Lines of text
// gather in `pending_`. A chunk is returned only once the next line is known, since it says whether it ends
// its document. A JSON line is one document and is parsed as a whole, up to a limit.

#include "runtime/text/text_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace cairn {
namespace {

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

void TrimLineEnd(std::string& text) { text.erase(text.find_last_not_of("\r\n") + 1); }

bool NamesJsonLines(std::string_view path) {
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
}

}  // namespace

Result<TextSource> TextSource::Open(FileSystem& fs, std::vector<std::string> paths,
                                    TextSourceOptions options) {
  TextSource source(fs, std::move(paths), std::move(options));
  for (const std::string& path : source.paths_) {
    CAIRN_ASSIGN_OR_RETURN(const LineReader reader, LineReader::Open(fs, path));
    source.total_bytes_ += reader.file_bytes();
  }
  return source;
}

Result<bool> TextSource::Next(TextChunk* chunk) {
  for (;;) {
    if (!reader_) {
      if (next_path_ == paths_.size()) return false;
      CAIRN_ASSIGN_OR_RETURN(reader_, LineReader::Open(*fs_, paths_[next_path_++]));
      at_line_start_ = true;
    }
    CAIRN_ASSIGN_OR_RETURN(const bool found, NextOfFile(chunk));
    if (found) return true;
    finished_bytes_ += reader_->file_bytes();
    reader_.reset();
  }
}

bool TextSource::CurrentIsJson() const {
  if (options_.format != TextFormat::kAuto) return options_.format == TextFormat::kJsonLines;
  return NamesJsonLines(reader_->path());
}

Result<bool> TextSource::NextOfFile(TextChunk* chunk) {
  return CurrentIsJson() ? NextJson(chunk) : NextText(chunk);
}

// The last line always waits in pending_ until it is known whether the document continues.
Result<bool> TextSource::NextText(TextChunk* chunk) {
  const auto take = [&](bool ends_document) {
    if (ends_document && options_.split_on_blank_lines) TrimLineEnd(pending_);
    *chunk = {std::move(pending_), ends_document};
    pending_.clear();
    in_document_ = !ends_document;
    return true;
  };
  for (;;) {
    LinePiece piece;
    CAIRN_ASSIGN_OR_RETURN(const bool more, reader_->Next(&piece));
    if (!more) return in_document_ ? take(true) : false;
    const bool separates =
        options_.split_on_blank_lines && at_line_start_ && piece.ends_line && IsBlank(piece.text);
    at_line_start_ = piece.ends_line;
    if (separates) {
      if (in_document_) return take(true);
      continue;
    }
    const bool full = pending_.size() + piece.text.size() > kMaxLinePieceBytes && !pending_.empty();
    if (full) take(false);
    pending_.append(piece.text);
    in_document_ = true;
    if (full) return true;
  }
}

Result<std::string> TextSource::ReadLine() {
  std::string line;
  LinePiece piece;
  do {
    CAIRN_ASSIGN_OR_RETURN(const bool more, reader_->Next(&piece));
    if (!more) break;
    if (line.size() + piece.text.size() > kMaxJsonLineBytes)
      return NotSupported(
          "{}: line {} is longer than {} MiB; is the file JSON lines? (--format text reads any text)",
          reader_->path(), reader_->line_number(), kMaxJsonLineBytes >> 20);
    line.append(piece.text);
  } while (!piece.ends_line);
  return line;
}

Result<bool> TextSource::NextJson(TextChunk* chunk) {
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const std::string line, ReadLine());
    if (line.empty()) return false;
    if (IsBlank(line)) continue;
    nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object())
      return Corrupt("{}: line {} is not a JSON object; correct the line, or read the file as --format text",
                     reader_->path(), reader_->line_number());
    const auto text = object.find(options_.json_key);
    if (text == object.end() || !text->is_string())
      return Corrupt("{}: line {} has no string under \"{}\"; name the key by --json-key", reader_->path(),
                     reader_->line_number(), options_.json_key);
    *chunk = {std::move(text->get_ref<std::string&>()), true};
    return true;
  }
}

}  // namespace cairn
