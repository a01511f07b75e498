// Tensor parallel slices of a model of unknown family: joined under the names in its files, by the patterns
// of names in the `universal_checkpoint_info` of its model states.
//
// Source: deepspeed 0.19 checkpoint/ds_to_universal.py (merge_tp_slices), checkpoint/constants.py and
// checkpoint/affine.py.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/base/status.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

// How the slices of a parameter make up the whole.
enum class SliceRule : uint8_t {
  kReplicated,  // all of it on each rank
  kRows,        // cut along dimension 0; also a parameter that no pattern fits
  kColumns,     // along dimension 1
  kTwoRows,     // two parameters one after another, each cut along dimension 0
  kMapped,      // as an affine map says
};

// Where the elements of one rank's slice lie in the whole.
struct SliceLayout {
  Dims whole;                 // shape
  std::vector<BoxMap> parts;  // "in_array": of the slice
};
// That of `rank` in an affine map, for a slice of shape `slice`. Errors: Corrupt if it contradicts itself or
// the slice; NotSupported for scaled pieces, and for pieces that are not boxes.
Result<SliceLayout> LayoutInMap(const PyValue& map, int rank, const Dims& slice);

class SlicePatterns {
 public:
  // `info` is universal_checkpoint_info; null if there is none. Errors: NotSupported naming a pattern that
  // is not understood.
  static Result<SlicePatterns> Read(const PyValue* info);

  bool any() const { return any_; }  // whether there is such an info
  // The first pattern that matches decides. Without a match buffers are kReplicated, since the patterns are
  // not meant for them. Errors: NotSupported if the pattern is of a kind that is not read.
  struct Found {
    SliceRule rule = SliceRule::kRows;
    const PyValue* map = nullptr;  // of kMapped
  };
  Result<Found> RuleOf(const std::string& name, bool buffer) const;

 private:
  struct Kind {
    const char* key;  // of the info: "tp_replicated_parameter_patterns"
    std::optional<SliceRule> rule;
  };
  struct Pattern {
    Kind kind;
    std::regex regex;
    const PyValue* map = nullptr;
  };
  static const Kind kKinds[];
  Status Add(const Kind& kind, const PyValue& pattern, const PyValue* map = nullptr);

  bool any_ = false;
  std::vector<Pattern> patterns_;  // in the order in which they count
};

}  // namespace cairn
