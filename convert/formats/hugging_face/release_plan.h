// Plans a directory of safetensors files under the names of an architecture table.
//
// One file, or several with their index if they exceed the shard size, named as the transformers package
// names them; configuration and copies in the same directory.
#pragma once

#include "ckpt/families/foreign_model.h"
#include "convert/foreign/stored_target.h"
#include "convert/formats/hugging_face/safetensors_layout.h"

namespace cairn {

// Tensors of the given sizes into files of at most `max_bytes`, in order; a larger one has its own file.
std::vector<std::vector<size_t>> CutIntoFiles(const std::vector<uint64_t>& tensor_bytes, uint64_t max_bytes);

// `model` has passed CheckAgainst(); every part of a foreign tensor has the same dtype. `copies` are files to
// write along with the weights, by name; they win over those of the model. Errors: InvalidArgument (more
// tensors than a header holds); IoError (a copy that cannot be read).
Result<StoredTarget> PlanRelease(const ForeignModel& model, std::vector<WrittenTensor> weights,
                                 uint64_t max_file_bytes, const FileCopies& copies);

}  // namespace cairn
