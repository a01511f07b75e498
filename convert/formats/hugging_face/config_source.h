// A checkpoint under Hugging Face's names, read as the canonical parameters of the model that a config.json
// describes.
//
// What FSDP, DeepSpeed or cairn.torch saved of a transformers model has the names of its modules, and nothing
// in it says which model that is. Read by its config.json it reshapes, and converts to every format: weights,
// masters and the optimizer's states alike. What the training kept beside them under its own names (a state
// dict's other values, random states) has no place then; the account lists it.
#pragma once

#include <memory>

#include "convert/foreign/format.h"

namespace cairn {

// `options.config` is the file, or the directory that it is in. Errors: NotSupported where the family has no
// table, or a state's shape has no place; InvalidArgument where names are unknown; NotFound naming what is
// missing; Corrupt naming a tensor of another shape, or copies of tied embeddings that differ; those of
// config.json.
Result<std::unique_ptr<ForeignSource>> ReadByConfig(FileSystem& fs, std::unique_ptr<CheckpointSource> source,
                                                    const OpenOptions& options);

}  // namespace cairn
