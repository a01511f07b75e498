// Other names that Megatron-LM and Megatron-DeepSpeed have or had for our flags.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

struct FlagAlias {
  std::string_view old_name;  // with dashes, without the leading two
  std::string_view name;      // of TrainFlags()
  std::string_view value;  // "=" and that of ours, if the old flag is a switch that stands for it; else empty
  std::string_view also;   // a switch of ours that the old flag turned on
};
std::span<const FlagAlias> FlagAliases();

// Writes the words of a command line in our names. argparse's programs have flags with underscores
// (--deepspeed_config, --local_rank): a flag's underscores become dashes, values stay as they are.
std::vector<std::string> InCairnNames(const std::vector<std::string>& words);

}  // namespace cairn
