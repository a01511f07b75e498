// Files of torch.save, one of each rank, whose DTensors are parts of the model's tensors: those of verl and
// SkyRL (KIND_world_size_W_rank_R.pt, config.json and tokenizer in huggingface/) and of torch_checkpointing
// (ITEM_R.pt, and metadata.pkl with what each item has).
//
// They are joined to an index as torch.distributed.checkpoint would have written it: {ITEM: its values}, and
// from there on read as one. What several ranks hold is compared. Sources: verl 01ee5e04,
// utils/checkpoint/fsdp_checkpoint_manager.py; torch_checkpointing 0.1.1.
#pragma once

#include "convert/foreign/expert_census.h"
#include "convert/foreign/open_options.h"

namespace cairn {

// `path` is a directory with such files.
bool MatchesRankFiles(FileSystem& fs, const std::string& path);

// Errors: NotFound naming the file of a rank that is missing, or a tensor without all of its parts; Corrupt
// and NotSupported naming file and tensor; those of OpenDcp().
Result<std::unique_ptr<ForeignSource>> OpenRankFiles(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options);
// The model's tensors.
Result<StoredNames> NamesOfRankFiles(FileSystem& fs, const std::string& path);

// Checks that no rank lacks a file, as far as names tell. Errors: NotFound naming the first missing one.
Status CheckRankFiles(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names);

}  // namespace cairn
