// Reads a run's configuration from log lines of any program:
//
//   "  hidden_size ............................. 1024"            the dump of arguments (Megatron, DeepSpeed)
//   "using world size: 16, data-parallel-size: 1, ..."            Megatron
//   "> padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)"
//   "training 136192 parameters in fp32 with TP=2 PP=1 DP=1 ZeRO=0"   ours
//   "python pretrain_gpt.py --hidden-size 1024 --bf16"            a command line
//   "\"train_batch_size\": 64,"                                    DeepSpeed's configuration
#pragma once

#include <string_view>

#include "tools/report/run_config.h"

namespace cairn {

// Each sets the fields that `config` lacks and the line has.
bool TakeDumpedArgument(std::string_view text, RunConfig& config);  // true if it is one of a known field
int TakeCommandLine(std::string_view text, RunConfig& config);      // the number of known flags
void TakeJsonFields(std::string_view text, RunConfig& config);
void TakeSentence(std::string_view text, RunConfig& config);

// Sets a field by any of its names, spelled as in flags or in dumps; a count is the number that `value`
// starts with. False if the name is unknown.
bool TakeField(std::string_view name, std::string_view value, RunConfig& config);

}  // namespace cairn
