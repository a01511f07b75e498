// verl's checkpoints: global_step_N/actor with a file of torch.save for each rank of FSDP, config.json and
// tokenizer in huggingface/; latest_checkpointed_iteration.txt beside the steps, as Megatron has it.
//
// The files of several ranks hold DTensors, which verl's own merger joins. The one file of a world of
// one rank has plain tensors, which keep their names. If it is asked to, verl puts a whole Hugging Face model
// into huggingface/. Source: verl 01ee5e04, utils/checkpoint/fsdp_checkpoint_manager.py.
#pragma once

#include "convert/foreign/open_options.h"

namespace cairn {

// `path` is a directory with model_world_size_W_rank_R.pt.
bool MatchesVerl(FileSystem& fs, const std::string& path);

// Errors: NotSupported naming the merger, or the model in huggingface/, if the world has several ranks; those
// of OpenTorch.
Result<std::unique_ptr<ForeignSource>> OpenVerl(FileSystem& fs, const std::string& path,
                                                ReaderOptions& options);

// Checks that no rank lacks a file; the names of the files say how many ranks there are. Errors: NotFound
// naming the first file that is missing.
Status CheckVerlFiles(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names);

}  // namespace cairn
