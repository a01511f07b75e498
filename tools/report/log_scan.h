// Reads a log of any size from front to back and passes on the lines that may matter.
//
// A line ends at \n or \r, so each state of a progress bar is a line. Line numbers count \n, as editors do.
// Terminal escape sequences are removed. Memory: one block, whatever the size of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"
#include "tools/report/log_words.h"

namespace cairn {

struct LogLine {
  std::string_view text;  // without its end
  uint64_t number = 0;    // from 1
  uint32_t kinds = 0;     // LineKind, or-ed
};

// Facts about the whole file.
struct LogFacts {
  uint64_t bytes = 0;
  uint64_t longest_line = 0;  // bytes, at least; a line of more than 1 MiB comes in parts
  uint64_t zeros = 0;         // zero bytes in the first block
  bool compressed = false;    // gzip, zstd, xz or zip by its first bytes
  bool utf16 = false;         // text of two bytes a character, by its mark or its zeros
};

// Receives each line with a word of log_words.h; its text is valid during the call.
using LineVisitor = std::function<void(const LogLine&)>;

// `path`: a file, a pipe, or "-" for standard input. Errors: NotFound, InvalidArgument (a directory),
// IoError.
Result<LogFacts> ScanLog(const std::string& path, const LineVisitor& visit);

// The same for bytes in memory.
LogFacts ScanLogText(std::string_view text, const LineVisitor& visit);

}  // namespace cairn
