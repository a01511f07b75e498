// Tensor parallel slices of a model of unknown family: joined under the names in its files, by the patterns
// of names in the `universal_checkpoint_info` of its model states.
//
// Source: deepspeed 0.19 checkpoint/ds_to_universal.py (merge_tp_slices) and checkpoint/constants.py.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

// How the slices of a parameter make up the whole.
enum class SliceRule : uint8_t {
  kReplicated,  // all of it on each rank
  kRows,        // cut along dimension 0; also a parameter that no pattern fits
  kColumns,     // along dimension 1
  kTwoRows,     // two parameters one after another, each cut along dimension 0
};

class SlicePatterns {
 public:
  // `info` is universal_checkpoint_info; null if there is none. Errors: NotSupported naming a pattern that
  // is not understood.
  static Result<SlicePatterns> Read(const PyValue* info);

  bool any() const { return any_; }  // whether there is such an info
  // The first pattern that matches decides. Without a match buffers are kReplicated, since the patterns are
  // not meant for them. Errors: NotSupported if the pattern is of a kind that is not read.
  Result<SliceRule> RuleOf(const std::string& name, bool buffer) const;

 private:
  struct Kind {
    const char* key;  // of the info: "tp_replicated_parameter_patterns"
    std::optional<SliceRule> rule;
  };
  struct Pattern {
    Kind kind;
    std::regex regex;
  };
  static const Kind kKinds[];
  Status Add(const Kind& kind, const PyValue& pattern);

  bool any_ = false;
  std::vector<Pattern> patterns_;  // in the order in which they count
};

}  // namespace cairn
