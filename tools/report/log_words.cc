// A table of all pairs of characters gives the words that begin with a pair. Words are compared only at the
// few places of a log with such a pair. A word may be coarse: it only selects a line, which the reader of its
// kind then parses. But a line of trouble is a failure only by its words, so some of these words check the
// characters around them.
#include "tools/report/log_words.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tools/report/failure.h"
#include "tools/report/numbers.h"

namespace cairn {
namespace {

// True if the word at [begin, end) of `text` counts, by the characters around it.
using WordCheck = bool (*)(std::string_view text, size_t begin, size_t end);

bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsCapital(char c) { return c >= 'A' && c <= 'Z'; }
bool EndsWord(std::string_view text, size_t, size_t end) {
  return end >= text.size() || !IsWordCharacter(text[end]);
}
bool IsWholeWord(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !IsWordCharacter(text[begin - 1])) && EndsWord(text, begin, end);
}
// The end of a name like RuntimeError.
bool EndsName(std::string_view text, size_t begin, size_t end) {
  return begin > 0 && IsLower(text[begin - 1]) && EndsWord(text, begin, end);
}
// "exit code", "exited with status", "exits with value", "exit exit code"
bool IsExitStatus(std::string_view text, size_t, size_t end) {
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

constexpr LogWord kLogWords[] = {
    {"iteration", kIterationLine, true},
    {"iter time (s):", kDeepSpeedLine},
    {", skipped=", kDeepSpeedLine},
    {"SamplesPerSec=", kDeepSpeedLine},
    {"max reserved: ", kMemoryLine},
    {"Max_CA ", kMemoryLine},
    {"MaxMemAllocated=", kMemoryLine},
    {" ...", kConfigLine},
    {"using world size:", kConfigLine | kStartLine},
    {"new size: ", kConfigLine},
    {"TOTAL_PARAMS=", kConfigLine},
    {"number of parameters: ", kConfigLine},
    {" total parameters", kConfigLine},
    {"parameter count: dense", kConfigLine},
    {"mesh with parallelism: ", kConfigLine | kStartLine},
    {"with local batch size ", kConfigLine | kStartLine},
    {"raining starts at step ", kStartLine},
    {"tps: ", kStepLine | kMemoryLine},
    {": loss ", kStepLine},
    {": train loss ", kStepLine},
    {"with TP=", kConfigLine | kStartLine},
    {"arguments ---", kStartLine},
    {"--", kCommandLine},
    {"\"stage\"", kJsonLine},
    {"\"train_batch_size\"", kJsonLine},
    {"\"train_micro_batch_size_per_gpu\"", kJsonLine},
    {"\"gradient_accumulation_steps\"", kJsonLine},
    {"saved checkpoint", kCheckpointLine},
    {"save-checkpoint", kCheckpointLine},
    {"save checkpoint:", kCheckpointLine},
    {"Finished saving the checkpoint", kCheckpointLine},
    {"loaded checkpoint", kStartLine},
    {"after training is done", kDoneLine},
    {"Training completed", kDoneLine},
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
    {"%|", kTrainerLine},
    {"Error", kTroubleLine, false, EndsName},
    {"Exception", kTroubleLine, false, EndsName},
    {"Interrupt", kTroubleLine, false, EndsName},
    {"Exception", kTroubleLine, false, IsWholeWord},
    {"StopIteration", kTroubleLine},
    {"StopAsyncIteration", kTroubleLine},
    {"SystemExit", kTroubleLine},
    {"GeneratorExit", kTroubleLine},
    {"Traceback (most recent call last)", kTroubleLine},
    {"exit", kTroubleLine, false, IsExitStatus},
    {"Exit", kTroubleLine, false, IsExitStatus},
    {"exitcode", kTroubleLine},
    {"cairn-train: ", kTroubleLine},
};

uint32_t PairOf(char first, char second) {
  return static_cast<uint32_t>(static_cast<unsigned char>(first)) << 8 | static_cast<unsigned char>(second);
}

char Capital(char c) { return IsLower(c) ? static_cast<char>(c - ('a' - 'A')) : c; }

// `text` has the first two characters of the word, perhaps in another case.
bool Begins(std::string_view text, const LogWord& word) {
  if (text.size() < word.text.size()) return false;
  for (size_t i = 2; i < word.text.size(); ++i)
    if ((word.any_case ? LowerCase(text[i]) : text[i]) != word.text[i]) return false;
  return true;
}

// By the first two characters of a word: the words that begin with them.
class WordTable {
 public:
  WordTable() : words_(std::begin(kLogWords), std::end(kLogWords)), groups_(1) {  // group 0: no word
    for (const std::string_view word : FailureWords())
      words_.push_back({word, kTroubleLine, std::ranges::none_of(word, IsCapital)});
    for (const LogWord& word : words_)
      for (const char first : {word.text[0], word.any_case ? Capital(word.text[0]) : word.text[0]})
        for (const char second : {word.text[1], word.any_case ? Capital(word.text[1]) : word.text[1]})
          Add(first, second, word);
  }

  uint32_t KindsIn(std::string_view line) const {
    uint32_t kinds = 0;
    for (size_t at = 0; at + 1 < line.size(); ++at) {
      const uint8_t group = group_of_[PairOf(line[at], line[at + 1])];
      if (group == 0) [[likely]]
        continue;
      for (const LogWord* word : groups_[group])
        if ((kinds & word->kinds) != word->kinds && Begins(line.substr(at), *word) &&
            (word->check == nullptr || word->check(line, at, at + word->text.size())))
          kinds |= word->kinds;
    }
    return kinds;
  }

 private:
  void Add(char first, char second, const LogWord& word) {
    uint8_t& group = group_of_[PairOf(first, second)];
    if (group == 0) {
      group = static_cast<uint8_t>(groups_.size());
      groups_.emplace_back();
    }
    if (groups_[group].empty() || groups_[group].back() != &word) groups_[group].push_back(&word);
  }

  std::vector<LogWord> words_;
  std::array<uint8_t, 1 << 16> group_of_{};
  std::vector<std::vector<const LogWord*>> groups_;
};

}  // namespace

uint32_t LineKinds(std::string_view line) {
  static const WordTable table;
  return table.KindsIn(line);
}

}  // namespace cairn
