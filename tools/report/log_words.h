// The words that a report looks for in a log, and what a line that holds one may be.
//
// Most lines of a log hold none. One pass over whole blocks finds the lines that do; only those are taken
// apart.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {

// What a line may be. A line can be several: an error in the middle of a line of a progress bar.
enum LineKind : uint32_t {
  kIterationLine = 1 << 0,  // "iteration 5/ 100 | ..."
  kDeepSpeedLine =
      1 << 1,  // "steps: 10 loss: ... iter time (s): ...", "step=10, skipped=0", "...SamplesPerSec=..."
  kMemoryLine = 1 << 2,       // "max reserved: ...", "Max_CA ...", "MaxMemAllocated=..."
  kConfigLine = 1 << 3,       // "hidden_size ....... 1024", "using world size: 8"
  kCommandLine = 1 << 4,      // "--hidden-size 1024"
  kJsonLine = 1 << 5,         // "\"train_batch_size\": 64"
  kStartLine = 1 << 6,        // what programs print once when they start
  kCheckpointLine = 1 << 7,   // "successfully saved checkpoint", "save-checkpoint: ..."
  kDoneLine = 1 << 8,         // "[after training is done]"
  kTroubleLine = 1 << 9,      // may say why a run failed
  kEvaluationLine = 1 << 10,  // "validation loss at iteration ..."
  kTrainerLine = 1 << 11,     // of Hugging Face's Trainer: "{'loss': 3.7, ...}", its banner and its bar
};

// A word found in a block.
struct WordHit {
  size_t end;      // offset after its last character
  uint32_t kinds;  // LineKind, or-ed
};

// Finds the words. One a thread.
class WordFinder {
 public:
  WordFinder();

  // The words in `block`, by their ends. Valid until the next call.
  std::span<const WordHit> Find(std::string_view block);

 private:
  // By the first two characters of a word: the words that begin so, or none.
  std::array<uint8_t, 1 << 16> group_of_{};
  std::vector<std::vector<uint8_t>> groups_;
  std::vector<WordHit> hits_;
};

}  // namespace cairn
