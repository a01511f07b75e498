// DeepSpeed's universal checkpoints: a directory a parameter with its fp32 value and moments, whole over all
// ranks. The masters are the weights; no others are stored.
//
// Source: deepspeed 0.16 to 0.19, checkpoint/ds_to_universal.py.
#pragma once

#include "convert/foreign/open_options.h"

namespace cairn {

// `path` is such a directory. Open also takes one with a `latest_universal` file, if --from names the format.
bool MatchesUniversal(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenUniversal(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options);

}  // namespace cairn
