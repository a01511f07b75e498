// A file of torch.save, of any model: every tensor in it under the path that leads to it.
//
// For inspect, fingerprint and diff. It does not know a model's tensors. State dicts of torch.optim are
// recognised by their keys: the manifest's state lists their paths as `optimizers`, for strip.
#pragma once

#include "convert/foreign/account.h"
#include "convert/foreign/open_options.h"
#include "convert/foreign/stored_source.h"

namespace cairn {

bool MatchesTorch(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenTorch(FileSystem& fs, const std::string& path,
                                                 ReaderOptions& options);

// The tensors of `pytorch_model.bin` and the like, `name` in `directory`; their extents are in file 0. Lists
// the storages. Errors: those of TorchFile::Open and ArrayOf, naming the path.
Result<std::vector<StoredArray>> ListTorchTensors(FileSystem& fs, const std::string& directory,
                                                  const std::string& name, Account& account);

}  // namespace cairn
