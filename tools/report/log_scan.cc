// Blocks are read with read(2), not mapped: its owner may truncate a log meanwhile. A block ends with its
// last whole line; the rest moves to the front of the next.
#include "tools/report/log_scan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "ckpt/base/unique_fd.h"

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 256 << 10;  // stays in the cache between reading and parsing
constexpr size_t kMaxLineBytes = 1 << 20;

// The end of the last whole line; 0 if there is no line end.
size_t WholeLines(std::string_view text) { return text.find_last_of("\r\n") + 1; }

// Without escape sequences: ESC [ ... letter, ESC ] ... BEL, ESC and one more.
void StripEscapes(std::string_view text, std::string& out) {
  out.clear();
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '\x1b') {
      out += text[i++];
      continue;
    }
    const char kind = i + 1 < text.size() ? text[i + 1] : '\0';
    i += 2;
    if (kind == '[') {
      while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
      ++i;
    } else if (kind == ']') {
      while (i < text.size() && text[i] != '\a' && text[i] != '\x1b') ++i;
      i += i < text.size() && text[i] == '\a';
    }
  }
}

bool IsCompressed(std::string_view start) {
  constexpr std::string_view kMagics[] = {"\x1f\x8b", "\x28\xb5\x2f\xfd", "\xfd\67zXZ", "PK\x03\x04"};
  return std::ranges::any_of(kMagics, [start](std::string_view magic) { return start.starts_with(magic); });
}

// Latin text without a mark has a zero in every second byte.
bool IsUtf16(std::string_view start) {
  if (start.starts_with("\xff\xfe") || start.starts_with("\xfe\xff")) return true;
  std::array<size_t, 2> zeros{};
  for (size_t i = 0; i < start.size(); ++i) zeros[i % 2] += start[i] == '\0';
  return std::max(zeros[0], zeros[1]) > start.size() * 2 / 5 && std::min(zeros[0], zeros[1]) == 0;
}

class Scanner {
 public:
  explicit Scanner(const LineVisitor& visit) : visit_(visit) {}

  void Start(std::string_view first) {
    facts_.zeros = static_cast<uint64_t>(std::ranges::count(first, '\0'));
    facts_.compressed = IsCompressed(first);
    facts_.utf16 = IsUtf16(first);
  }

  // `block` consists of whole lines, or is a part of a long one.
  void Block(std::string_view block) {
    facts_.bytes += block.size();
    while (!block.empty()) {
      const size_t newline = std::min(block.find('\n'), block.size());
      Line(block.substr(0, newline));
      newlines_ += newline < block.size();
      block.remove_prefix(std::min(newline + 1, block.size()));
    }
  }

  void LongLine(size_t bytes) { facts_.longest_line = std::max<uint64_t>(facts_.longest_line, bytes); }

  const LogFacts& facts() const { return facts_; }

 private:
  // `line` may be several states of a progress bar.
  void Line(std::string_view line) {
    while (!line.empty()) {
      const size_t end = std::min(line.find('\r'), line.size());
      Take(line.substr(0, end));
      line.remove_prefix(std::min(end + 1, line.size()));
    }
  }

  void Take(std::string_view text) {
    const uint32_t kinds = LineKinds(text);
    if (kinds == 0) return;
    if (text.find('\x1b') != text.npos) {
      StripEscapes(text, stripped_);
      text = stripped_;
    }
    LongLine(text.size());
    visit_({text, newlines_ + 1, kinds});
  }

  const LineVisitor& visit_;
  LogFacts facts_;
  uint64_t newlines_ = 0;  // of the whole file so far
  std::string stripped_;
};

Status CannotRead(const std::string& path) {
  const int error = errno;
  if (error == ENOENT) return NotFound("{}: no such file; give the path of a log", path);
  if (error == EISDIR)
    return InvalidArgument("{}: this is a directory; name the logs in it, like {}/*.out", path, path);
  return IoError("{}: the file cannot be read: {}", path, std::strerror(error));
}

// Fills `buffer` from `filled` on. 0 bytes: the end.
Result<size_t> Fill(int fd, const std::string& path, std::vector<char>& buffer, size_t filled) {
  for (;;) {
    const ssize_t got = read(fd, buffer.data() + filled, buffer.size() - filled);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) return CannotRead(path);
  }
}

Result<LogFacts> ScanDescriptor(int fd, const std::string& path, Scanner& scanner) {
  std::vector<char> buffer(kBlockBytes);
  size_t filled = 0, line_bytes = 0;
  bool first = true;
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const size_t got, Fill(fd, path, buffer, filled));
    if (std::exchange(first, false)) scanner.Start({buffer.data(), got});
    const std::string_view text(buffer.data(), filled + got);
    size_t whole = got == 0 ? text.size() : WholeLines(text);
    if (whole == 0 && text.size() == buffer.size()) {
      if (buffer.size() < kMaxLineBytes) {
        filled = text.size();
        buffer.resize(buffer.size() * 2);
        continue;
      }
      whole = text.size();
      line_bytes += whole;
      scanner.LongLine(line_bytes);
    } else if (whole > 0) {
      line_bytes = 0;
    }
    scanner.Block(text.substr(0, whole));
    filled = text.size() - whole;
    std::memmove(buffer.data(), buffer.data() + whole, filled);
    if (got == 0) return scanner.facts();
  }
}

}  // namespace

Result<LogFacts> ScanLog(const std::string& path, const LineVisitor& visit) {
  const UniqueFd file(path == "-" ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = path == "-" ? STDIN_FILENO : file.get();
  if (fd < 0) return CannotRead(path);
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  Scanner scanner(visit);
  return ScanDescriptor(fd, path, scanner);
}

LogFacts ScanLogText(std::string_view text, const LineVisitor& visit) {
  Scanner scanner(visit);
  scanner.Start(text.substr(0, kBlockBytes));
  scanner.Block(text);
  return scanner.facts();
}

}  // namespace cairn
