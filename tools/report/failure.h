// The reason why a run failed, and the line that states it.
//
// One failure makes many lines: a rank runs out of memory, the others lose their connection to it, Slurm
// cancels the step. TakeFailure weighs them and keeps the first that is a cause rather than a consequence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

struct Failure {
  std::string cause;  // "out of memory", "NCCL timeout", "time limit", ...
  std::string text;   // the line, printable, at most 300 characters
  std::string file;
  uint64_t line = 0;
  int weight = 0;        // of its kind
  bool decreed = false;  // Slurm ended the job: later failures are consequences
};

// Each line that reports a failure contains one of these words, unless it is an exception or an exit code.
// Words in small letters match in any case.
std::vector<std::string_view> FailureWords();

// The failure that the line `text` reports; nullopt if it reports none.
std::optional<Failure> FailureIn(std::string_view text);

// Replaces `best`, the failure of the lines before, if the line number `line` reports a heavier one.
void TakeFailure(std::string_view text, uint64_t line, std::optional<Failure>& best);

}  // namespace cairn
