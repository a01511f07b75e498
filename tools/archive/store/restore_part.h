// Gets a part of an archived step back: its weights as a step, or tensors as one safetensors file. Reads only
// the parts of the tar that they need.
#pragma once

#include <string>
#include <vector>

#include "tools/archive/store/restore.h"

namespace cairn {

class CheckpointSource;
struct StepCatalog;

// The weights of a step that is read through `from`, in their stored types, as the step directory
// `destination`, with its tokenizer. Errors: those of RestoreTar and Strip.
Status RestoreWeights(FileSystem& fs, FileSystem& from, CheckpointSource& step,
                      const std::string& destination);

// The step's files with the tensors that any glob matches, and the weights from which packed ones are
// completed.
std::vector<std::string> FilesOfTensors(const StepCatalog& catalog, const std::vector<std::string>& globs);

// Writes the tensors that any glob matches (tensor_glob.h: "NAME", "NAME/master") as `destination`, read
// back. Returns how many. Errors: AlreadyExists; InvalidArgument if no tensor matches a glob; Corrupt.
Result<size_t> RestoreTensors(FileSystem& fs, CheckpointSource& step, const std::vector<std::string>& globs,
                              const std::string& destination, const ByteProgress& progress);

}  // namespace cairn
