// The datasets of a training, as its command line names them: --data-path, or BigScience's weighted splits.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// --data-path: one prefix, or several, with or without weights.
struct DataPath {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;  // as given; as many as prefixes
};

// `words` are prefixes, or WEIGHT PREFIX WEIGHT PREFIX... Source: get_blend_from_list of megatron-core 0.16.
// Errors: InvalidArgument (no word; a weight that is not above 0; weights for some prefixes only).
Result<DataPath> ParseDataPath(std::span<const std::string> words);

// One dataset of a weighted split: WEIGHT START:END PREFIX.
struct SplitPart {
  double weight = 1;          // 0 gives no sample
  double begin = 0, end = 1;  // which of its sequences, as shares of them
  std::string prefix;
};

struct SplitGroup {
  std::string name;
  std::vector<SplitPart> parts;
};

// "NAME: WEIGHT START:END PREFIX, WEIGHT START:END PREFIX". Source: parse_data_paths in arguments.py of
// BigScience's Megatron-DeepSpeed. Errors: InvalidArgument.
Result<SplitGroup> ParseSplitGroup(std::string_view text);

// The groups in the content of a file: each in double quotes, separated by spaces or line ends. Errors:
// InvalidArgument.
Result<std::vector<std::string>> SplitGroupsIn(std::string_view content);

}  // namespace cairn
