// Whether a checkpoint has all of its model and all of each state of the optimizer.
//
// StoredSource checks that each tensor in the files is covered once. This finds what the files lack: a
// parameter that the model has and no file, a state that is a part of its parameter's, the optimizer in a
// form that its reader does not know.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/source.h"
#include "convert/foreign/open_options.h"

namespace cairn {

// The canonical parameters that the manifest's model has, and the table has not. Empty if the model does not
// say which it has. Those that the history says were allowed to be missing are not listed.
std::vector<std::string> MissingParameters(const TensorTable& table, const Manifest& manifest);

// Missing parameters that `options` allow go into allowed_names. Errors: NotFound naming the others and the
// flag.
Status CheckParameters(const CheckpointSource& source, ReaderOptions& options);

// Checks all three. Errors: those of CheckParameters; Corrupt and NotSupported naming the states and the
// flag.
Status CheckWhole(const CheckpointSource& source, ReaderOptions& options);

}  // namespace cairn
