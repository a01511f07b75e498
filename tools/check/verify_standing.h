// The verdict of past checks on a step's bytes, as pure functions.
//
// A step has a list of checks, oldest first. Each says what was checked, when, how many bytes of how many,
// and how the files looked at that moment. These rules turn the list into one word:
//   - A failure stays until an equally strong or stronger check of the same bytes passes. "Every byte" is
//     stronger than a sample and than the structure; a sample is as strong as an earlier one if it covers
//     the same ranges; values are a separate question, which only another check of values answers.
//   - Only a check of every byte makes a step verified. A weaker check that passes does not change that.
//   - A file that looks different now (size, time of modification or of change, inode) was not checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

enum class CheckKind { kStructure, kSample, kValues, kEveryByte };
inline constexpr CheckKind kAllCheckKinds[] = {CheckKind::kStructure, CheckKind::kSample, CheckKind::kValues,
                                               CheckKind::kEveryByte};
std::string_view Name(CheckKind kind);  // "structure", "sample", "values", "every byte"

// A file as it looked when it was checked, or as it looks now.
struct CheckedFile {
  std::string name;
  uint64_t bytes = 0;
  int64_t modified_unix_nanoseconds = 0;
  int64_t changed_unix_nanoseconds = 0;  // of the inode
  uint64_t inode = 0;
  bool operator==(const CheckedFile&) const = default;
};

// Bytes [begin, end) of a file.
struct CheckedRange {
  std::string file;
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const CheckedRange&) const = default;
};

struct Check {
  CheckKind kind = CheckKind::kStructure;
  int64_t unix_seconds = 0;
  uint64_t bytes = 0;     // that were read
  uint64_t of_bytes = 0;  // of the step's files
  // A sample's: the bytes it read or, once it failed, the wrong bytes; empty if the list would be too long.
  // The seed and the number of chunks choose the same ones again (sample_check.h).
  std::vector<CheckedRange> ranges;
  uint64_t seed = 0;
  uint64_t chunks = 0;
  uint64_t problems = 0;
  std::vector<std::string> first_problems;
  std::vector<CheckedFile> files;  // empty: an old record, which does not state it
  bool operator==(const Check&) const = default;
};

// Whether the pass `check` answers the earlier failure `failure`.
bool Settles(const Check& check, const Check& failure);

// Appends a check, and drops those that no longer matter: `checks` stays short after any number of checks.
void AddCheck(std::vector<Check>& checks, Check check);

enum class Trust { kUnverified, kPartlyVerified, kVerified, kChanged, kDamaged };
// "unverified", "partly verified", "verified", "changed since verified", "damaged"
std::string_view Name(Trust trust);

struct Standing {
  Trust trust = Trust::kUnverified;
  double share = 0;  // of the step's bytes, if it is partly verified
  std::string why;   // one line: what is wrong, or what has changed; empty otherwise
};

// `now`: the step's files as they look.
Standing StandingOf(const std::vector<Check>& checks, const std::vector<CheckedFile>& now);

}  // namespace cairn
