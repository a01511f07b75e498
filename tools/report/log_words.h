// The words that a report looks for in a log, and the kinds of lines that contain them.
//
// Most lines of a log contain no such word. Only the others are parsed.
#pragma once

#include <cstdint>
#include <string_view>

namespace cairn {

// The kinds of lines. A line can be of several: an error in the middle of a line of a progress bar.
enum LineKind : uint32_t {
  kIterationLine = 1 << 0,  // "iteration 5/ 100 | ..."
  kDeepSpeedLine =
      1 << 1,  // "steps: 10 loss: ... iter time (s): ...", "step=10, skipped=0", "...SamplesPerSec=..."
  kMemoryLine = 1 << 2,       // "max reserved: ...", "Max_CA ...", "MaxMemAllocated=..."
  kConfigLine = 1 << 3,       // "hidden_size ....... 1024", "using world size: 8"
  kCommandLine = 1 << 4,      // "--hidden-size 1024"
  kJsonLine = 1 << 5,         // "\"train_batch_size\": 64"
  kStartLine = 1 << 6,        // printed once when a program starts
  kCheckpointLine = 1 << 7,   // "successfully saved checkpoint", "save-checkpoint: ..."
  kDoneLine = 1 << 8,         // "[after training is done]"
  kTroubleLine = 1 << 9,      // may be the reason of a failure
  kEvaluationLine = 1 << 10,  // "validation loss at iteration ..."
  kTrainerLine = 1 << 11,     // Hugging Face's Trainer: "{'loss': 3.7, ...}", its banner and its bar
  kStepLine = 1 << 12,        // torchtitan: "step: 5  loss: ...  tps: ..."; nanoGPT: "iter 5: loss 3.7, ..."
};

// The kinds of words in `line`, or-ed; 0 if it contains none.
uint32_t LineKinds(std::string_view line);

}  // namespace cairn
