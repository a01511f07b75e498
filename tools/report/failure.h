// The reason why a run failed, and the line that states it.
//
// One failure makes many lines: a rank runs out of memory, the others lose their connection to it, Slurm
// cancels the step. FailureSearch weighs them and keeps the first that is a cause rather than a consequence.
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
  int weight = 0;        // of FailureSearch
  bool decreed = false;  // Slurm ended the job: later failures are consequences
};

// Each line that reports a failure contains one of these words, unless it is an exception or an exit code.
// Words in small letters match in any case.
std::vector<std::string_view> FailureWords();

// The failure that the line `text` reports; nullopt if it reports none.
std::optional<Failure> FailureIn(std::string_view text);

class FailureSearch {
 public:
  void Look(std::string_view text, uint64_t line);
  void Clear() { best_.reset(); }
  const std::optional<Failure>& best() const { return best_; }

 private:
  std::optional<Failure> best_;
};

// `text` without what launchers put before each line: "3: ", "[rank3]: ", "[default0]:", "node1: ", and
// dates.
std::string_view WithoutPrefix(std::string_view text);

}  // namespace cairn
