// Checkpoints of DeepSpeed: pipelines of Megatron-DeepSpeed in layer files, and any model under ZeRO-1, 2
// or 3.
//
// Megatron's modules become canonical parameters; a model of other names keeps them. 16-bit weights come with
// their fp32 masters; if only masters are stored (ZeRO-3), they are the weights.
#pragma once

#include "convert/foreign/open_options.h"

namespace cairn {

Result<std::unique_ptr<ForeignSource>> OpenDeepSpeed(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options);

}  // namespace cairn
