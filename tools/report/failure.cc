// failures.txt has the signs, each with a cause and a weight. Lines that only give advice are dropped before.
// Exceptions, tracebacks and exit codes come after the signs, because they name a cause only if no sign does
// so. Over a log, a heavier failure replaces a lighter one, and of equals the first is kept; once Slurm has
// ended the job, only a failure of the machine replaces that.

#include "tools/report/failure.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/base/split_text.h"
#include "report_texts.h"
#include "tools/cli/printable.h"
#include "tools/report/numbers.h"

namespace cairn {
namespace {

constexpr size_t kMaxText = 300;

// Heavier ones are causes, lighter ones their consequences; of equals the first counts. failures.txt has
// these numbers.
constexpr int kMachine = 50;   // memory ran out, a node went away
constexpr int kProgram = 40;   // the program stopped by itself, with a reason
constexpr int kEnd = 30;       // something stopped the program
constexpr int kSymptom = 20;   // seen by other ranks
constexpr int kExit = 10;      // an exit status
constexpr int kTraceback = 5;  // an exception that no other line names

// A row of failures.txt.
struct Sign {
  std::vector<std::string_view> words;  // one after the other
  std::string_view cause;
  int weight;
  bool decreed;
};

const std::vector<Sign>& Signs() {
  static const std::vector<Sign> kSigns = [] {
    std::vector<Sign> signs;
    for (const std::string_view row : TextRows(kFailuresText)) {
      const size_t equals = row.find(" = ");
      const std::string_view meaning = row.substr(equals + 3);  // "50! node failure"
      signs.push_back({SplitText(row.substr(0, equals), '*'), After(meaning, " "),
                       static_cast<int>(CountOf(meaning.substr(0, 2))), meaning[2] == '!'});
    }
    return signs;
  }();
  return kSigns;
}

// Lines with these words report no failure.
constexpr std::string_view kHarmless[] = {
    "if you want to ", "to avoid ",         "reserved but unallocated memory is large",
    "signal handler",  "may cause",         "training continues",
    "will be killed",  "stacktrace",        "pytorch_cuda_alloc_conf",
    "nccl info",       "heartbeat_timeout", "assert_"};

bool HasCapital(std::string_view word) {
  return std::ranges::any_of(word, [](char c) { return c != LowerCase(c); });
}

// "killed", as a separate word and not after "not".
bool IsKilled(std::string_view text) {
  constexpr std::string_view kKilled = "killed";
  const size_t at = FindWord(text, kKilled);
  if (at == npos || FindWord(text, "not killed") != npos) return false;
  const std::string_view behind = text.substr(at + kKilled.size());
  return !(at > 0 && IsLetter(text[at - 1])) && !(!behind.empty() && IsLetter(behind[0]));
}

bool Has(std::string_view text, const std::vector<std::string_view>& parts) {
  size_t at = 0;
  for (const std::string_view part : parts) {
    at = HasCapital(part) ? text.find(part, at) : FindWord(text, part, at);
    if (at == npos) return false;
    at += part.size();
  }
  return true;
}

// "exited with exit code 137", "exitcode  : -9 (pid: 1)", "returned non-zero exit status 1", "exits with
// return code = 1".
std::optional<int> ExitCodeIn(std::string_view text) {
  for (const std::string_view words : {"exit code", "exitcode", "exit status", "return code", "exit value"}) {
    const size_t at = FindWord(text, words);
    if (at == npos) continue;
    const size_t begin = std::min(text.find_first_not_of(" :=", at + words.size()), text.size());
    const auto number = NumberAt(text.substr(begin));
    if (number && number->value != 0 && number->value >= -255 && number->value <= 255)
      return static_cast<int>(number->value);
  }
  return std::nullopt;
}

// "torch.cuda.SomeError: message" at the start of the line, as Python ends a traceback: "SomeError".
std::string_view ExceptionName(std::string_view text) {
  size_t end = 0, begin = 0;
  while (end < text.size() &&
         (IsLetter(text[end]) || IsDigit(text[end]) || text[end] == '_' || text[end] == '.')) {
    if (text[end] == '.') begin = end + 1;
    ++end;
  }
  const std::string_view name = text.substr(begin, end - begin);
  const bool ends = end == text.size() || text[end] == ':';
  bool is_exception = false;
  for (const std::string_view last :
       {"Error", "Exception", "Interrupt", "Iteration", "SystemExit", "GeneratorExit"})
    is_exception |= name.ends_with(last);
  return ends && is_exception && name.size() <= 60 ? name : std::string_view();
}

std::string Shortened(std::string_view text) {
  text = Trim(text);
  const bool cut = text.size() > kMaxText;
  if (cut) {
    size_t end = kMaxText;  // not within a character
    while (end > kMaxText - 4 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  std::string out(text);
  std::ranges::replace(out, '\t', ' ');
  out = Printable(std::move(out), Lines::kOne);
  return cut ? out + "..." : out;
}

// The length of one prefix of a launcher; 0 if there is none.
size_t PrefixLength(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] == ' ' || text[0] == '\t') return 1;
  if (text[0] == '[') {
    const size_t close = text.find(']');
    if (close == npos || close > 48) return 0;
    size_t end = close + 1;
    for (const std::string_view stream : {"<stdout>", "<stderr>"})
      if (text.substr(end).starts_with(stream)) end += stream.size();
    return end < text.size() && text[end] == ':' ? end + 1 : end;
  }
  size_t end = 0;
  while (end < text.size() && end < 48 &&
         (IsLetter(text[end]) || IsDigit(text[end]) || text[end] == '-' || text[end] == '.'))
    ++end;
  const bool host =
      end > 0 && IsDigit(text[end - 1]) && end + 1 < text.size() && text[end] == ':' && text[end + 1] == ' ';
  return host ? end + 2 : 0;
}

// `text` without what launchers put before each line: "3: ", "[rank3]: ", "[default0]:", "node1: ", and
// dates.
std::string_view WithoutPrefix(std::string_view text) {
  for (int k = 0; k < 40; ++k) {
    const size_t length = PrefixLength(text);
    if (length == 0) break;
    text.remove_prefix(length);
  }
  return text;
}

Failure Make(std::string_view text, std::string cause, int weight, bool decreed = false) {
  return {.cause = std::move(cause), .text = Shortened(text), .weight = weight, .decreed = decreed};
}

}  // namespace

std::vector<std::string_view> FailureWords() {
  std::vector<std::string_view> words;
  for (const Sign& sign : Signs()) words.push_back(std::ranges::max(sign.words, {}, &std::string_view::size));
  return words;
}

std::optional<Failure> FailureIn(std::string_view text) {
  text = text.substr(0, 4096);
  const std::string_view content = WithoutPrefix(text);
  for (const std::string_view words : kHarmless)
    if (FindWord(content, words) != npos && FindWord(content, "error") == npos) return std::nullopt;
  const std::string_view exception = ExceptionName(content);
  for (const Sign& sign : Signs()) {
    if (!Has(text, sign.words) || (sign.words[0] == "killed" && !IsKilled(text))) continue;
    return Make(text, std::string(sign.cause), sign.weight, sign.decreed);
  }
  if (!exception.empty()) return Make(text, fmt::format("python traceback: {}", exception), kProgram);
  if (content.starts_with("Traceback (most recent call last)"))
    return Make(text, "python traceback", kTraceback);
  if (content.starts_with("cairn-train: ")) {
    // A rank that stops, or a remark of one that continues.
    return content.find(": rank ") != npos ? std::optional(Make(text, "error", kProgram)) : std::nullopt;
  }
  if (const auto code = ExitCodeIn(text)) {
    if (*code == 137 || *code == -9) return Make(text, "killed", kSymptom);
    return Make(text, fmt::format("exit code {}", *code), kExit);
  }
  return std::nullopt;
}

void TakeFailure(std::string_view text, uint64_t line, std::optional<Failure>& best) {
  auto found = FailureIn(text);
  if (!found) return;
  if (best && (best->weight >= found->weight || (best->decreed && found->weight < kMachine))) return;
  found->line = line;
  best = std::move(found);
}

}  // namespace cairn
