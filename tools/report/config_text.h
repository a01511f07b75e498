// Reads a run's configuration from log lines, whichever program wrote them:
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

// Each takes what `config` lacks from the line, and returns how many fields the line has, known before or
// not.
int TakeDumpedArgument(std::string_view text, RunConfig& config);
int TakeCommandLine(std::string_view text, RunConfig& config);
int TakeJsonField(std::string_view text, RunConfig& config);
int TakeSentence(std::string_view text, RunConfig& config);

// Takes a field by any of its names, spelled as in flags or in dumps. False if the name is unknown.
bool TakeField(std::string_view name, std::string_view value, RunConfig& config);

}  // namespace cairn
