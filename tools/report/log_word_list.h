// The words themselves. A word may be coarse: it only selects a line, which the reader of its kind then
// parses. But a word that most lines contain would cost more than it finds, so some words also check the
// characters around them.
#pragma once

#include <cctype>
#include <cstdint>
#include <string_view>

#include "tools/report/log_words.h"
#include "tools/report/numbers.h"

namespace cairn {

// Whether the word at [begin, end) of `text` counts, by the characters around it.
using WordCheck = bool (*)(std::string_view text, size_t begin, size_t end);

inline char At(std::string_view text, size_t i) { return i < text.size() ? text[i] : '\0'; }
inline bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
inline bool IsWordChar(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

inline bool EndsWord(std::string_view text, size_t, size_t end) { return !IsWordChar(At(text, end)); }
inline bool IsWholeWord(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !IsWordChar(text[begin - 1])) && EndsWord(text, begin, end);
}
// The end of a name like RuntimeError.
inline bool EndsName(std::string_view text, size_t begin, size_t end) {
  return begin > 0 && IsLower(text[begin - 1]) && EndsWord(text, begin, end);
}
inline bool BeforeCapital(std::string_view text, size_t, size_t end) {
  return At(text, end) >= 'A' && At(text, end) <= 'Z';
}
// "elapsed time per iteration (ms)" and "number of skipped iterations" do not count.
inline bool BeforeNumber(std::string_view text, size_t, size_t end) {
  const size_t at = text.substr(0, end + 16).find_first_not_of(" :=", end);
  return IsDigit(At(text, at == std::string_view::npos ? end + 16 : at));
}
inline bool AfterWordChar(std::string_view text, size_t begin, size_t) {
  return begin > 0 && IsWordChar(text[begin - 1]);
}
inline bool IsFlag(std::string_view text, size_t begin, size_t end) {
  return begin > 0 && std::string_view(" '\"=").find(text[begin - 1]) != std::string_view::npos &&
         IsLower(At(text, end));
}
// "45%|████ | 450/1000 [01:02<"
inline bool IsProgressBar(std::string_view text, size_t begin, size_t end) {
  if (begin == 0 || !IsDigit(text[begin - 1])) return false;
  const std::string_view rest = text.substr(end, 160);
  const size_t time = rest.find(" [");
  return time != std::string_view::npos && time > 0 && IsDigit(rest[time - 1]) &&
         rest.substr(time, 24).find('<') != std::string_view::npos;
}
// "exit code", "exited with status", "exits with value", "exit exit code"
inline bool SaysStatus(std::string_view text, size_t, size_t end) {
  std::string_view rest = text.substr(end, 32);
  for (const std::string_view part : {"ed with", "s with", "code"})
    if (rest.starts_with(part)) {
      rest.remove_prefix(part.size());
      break;
    }
  if (!rest.starts_with(' ')) return false;
  rest.remove_prefix(1);
  if (rest.starts_with("exit ")) rest.remove_prefix(5);
  return rest.starts_with("code") || rest.starts_with("status") || rest.starts_with("value");
}

struct LogWord {
  std::string_view text;  // two characters at least
  uint32_t kinds;
  bool any_case = false;  // then `text` is in small letters
  WordCheck check = nullptr;
};

inline constexpr LogWord kLogWords[] = {
    {"iteration", kIterationLine, true, BeforeNumber},
    {"iter time (s):", kDeepSpeedLine},
    {", skipped=", kDeepSpeedLine},
    {"SamplesPerSec=", kDeepSpeedLine},
    {"max reserved: ", kMemoryLine},
    {"Max_CA ", kMemoryLine},
    {"MaxMemAllocated=", kMemoryLine},
    {" ...", kConfigLine, false, AfterWordChar},
    {"using world size:", kConfigLine | kStartLine},
    {"new size: ", kConfigLine},
    {"TOTAL_PARAMS=", kConfigLine},
    {"with TP=", kConfigLine | kStartLine},
    {"arguments ---", kStartLine},
    {"--", kCommandLine, false, IsFlag},
    {"\"stage\"", kJsonLine},
    {"\"train_batch_size\"", kJsonLine},
    {"\"train_micro_batch_size_per_gpu\"", kJsonLine},
    {"\"gradient_accumulation_steps\"", kJsonLine},
    {"saved checkpoint", kCheckpointLine},
    {"save-checkpoint", kCheckpointLine},
    {"save checkpoint:", kCheckpointLine},
    {"loaded checkpoint", kStartLine},
    {"after training is done", kDoneLine},
    {"exiting program at", kDoneLine},
    {"exiting program after", kDoneLine},
    {"validation loss at", kEvaluationLine},
    {"'loss': ", kTrainerLine},
    {"'eval_loss': ", kTrainerLine},
    {"'train_runtime': ", kTrainerLine},
    {"* Running training *", kTrainerLine},
    {"Total optimization steps = ", kTrainerLine},
    {"Num Epochs = ", kTrainerLine},
    {"Total train batch size ", kTrainerLine},
    {"Instantaneous batch size per device = ", kTrainerLine},
    {"Gradient Accumulation steps = ", kTrainerLine},
    {"Number of trainable parameters = ", kTrainerLine},
    {"Saving model checkpoint to ", kTrainerLine},
    {"%|", kTrainerLine, false, IsProgressBar},
    {"out of memory", kTroubleLine, true},
    {"out-of-memory", kTroubleLine},
    {"OutOfMemory", kTroubleLine},
    {"OUT_OF_ME", kTroubleLine},
    {"oom-kill", kTroubleLine, true},
    {"oom_kill", kTroubleLine, true},
    {"bad_alloc", kTroubleLine},
    {"NODE FAIL", kTroubleLine},
    {"NODE_FAIL", kTroubleLine},
    {"NODEFAIL", kTroubleLine},
    {"node failure", kTroubleLine, true},
    {"time limit", kTroubleLine, true},
    {"PREEMPT", kTroubleLine},
    {"CANCELLED", kTroubleLine},
    {"collective operation timeout", kTroubleLine},
    {"timed out", kTroubleLine, true},
    {"wait timeout", kTroubleLine, true},
    {"socket timeout", kTroubleLine, true},
    {"illegal memory access", kTroubleLine, true},
    {"unspecified launch failure", kTroubleLine, true},
    {"nccl error", kTroubleLine, true},
    {"nccl timeout", kTroubleLine, true},
    {"nccl communicator", kTroubleLine, true},
    {"ncclUnhandled", kTroubleLine, false, BeforeCapital},
    {"ncclSystem", kTroubleLine, false, BeforeCapital},
    {"ncclInternal", kTroubleLine, false, BeforeCapital},
    {"ncclRemote", kTroubleLine, false, BeforeCapital},
    {"unhandled cuda error", kTroubleLine},
    {"unhandled system error", kTroubleLine},
    {"Connection reset by", kTroubleLine},
    {"Connection closed by", kTroubleLine},
    {"stopping all ranks", kTroubleLine},
    {"heartbeat", kTroubleLine},
    {"assert", kTroubleLine},
    {"Assert", kTroubleLine},
    {"Error", kTroubleLine, false, EndsName},
    {"Exception", kTroubleLine, false, EndsName},
    {"Interrupt", kTroubleLine, false, EndsName},
    {"Exception", kTroubleLine, false, IsWholeWord},
    {"StopIteration", kTroubleLine, false, IsWholeWord},
    {"StopAsyncIteration", kTroubleLine, false, IsWholeWord},
    {"SystemExit", kTroubleLine, false, IsWholeWord},
    {"GeneratorExit", kTroubleLine, false, IsWholeWord},
    {"NET/IB", kTroubleLine},
    {"Traceback (most recent call last)", kTroubleLine},
    {"killed", kTroubleLine, false, IsWholeWord},
    {"Killed", kTroubleLine, false, IsWholeWord},
    {"SIGKILL", kTroubleLine, false, EndsWord},
    {"SIGTERM", kTroubleLine, false, EndsWord},
    {"SIGSEGV", kTroubleLine, false, EndsWord},
    {"SIGABRT", kTroubleLine, false, EndsWord},
    {"SIGBUS", kTroubleLine, false, EndsWord},
    {"egmentation fault", kTroubleLine},
    {"core dumped", kTroubleLine},
    {"Bus error", kTroubleLine},
    {"No space left on device", kTroubleLine},
    {"quota exceeded", kTroubleLine, true},
    {"ECC error", kTroubleLine},
    {"Xid ", kTroubleLine},
    {"exit", kTroubleLine, false, SaysStatus},
    {"Exit", kTroubleLine, false, SaysStatus},
    {"exitcode", kTroubleLine},
    {"cairn-train: ", kTroubleLine},
};

}  // namespace cairn
