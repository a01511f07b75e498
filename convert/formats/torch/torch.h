// A file of torch.save, of any model: every tensor in it under the path that leads to it.
//
// For inspect, fingerprint and diff. It does not know a model's tensors. State dicts of torch.optim are
// recognised by their keys: the manifest's state lists their paths as `optimizers`, for strip.
#pragma once

#include "convert/foreign/open_options.h"

namespace cairn {

bool MatchesTorch(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenTorch(FileSystem& fs, const std::string& path,
                                                 ReaderOptions& options);

// True if the file is one of torch.save that has only a training's other values: an optimizer's state, a
// schedule, random states, arguments.
bool IsWithoutWeights(FileSystem& fs, const std::string& path);

}  // namespace cairn
