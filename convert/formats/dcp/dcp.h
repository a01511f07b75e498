// A directory of torch.distributed.checkpoint: FSDP2, DTensor, or anything else that was saved with
// dcp.save().
//
// Parameters have the names of the model's own state dict; the optimizer's states are found by them. Only the
// boxes show how a model is cut across its ranks.
#pragma once

#include "convert/foreign/expert_census.h"
#include "convert/foreign/open_options.h"
#include "convert/foreign/write_options.h"

namespace cairn {

bool MatchesDcp(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenDcp(FileSystem& fs, const std::string& path,
                                               ReaderOptions& options);
// The model's tensors. Errors: as OpenDcp().
Result<StoredNames> NamesOfDcp(FileSystem& fs, const std::string& path);
// The same of an index that was made of other files.
struct DcpIndex;
Result<std::unique_ptr<ForeignSource>> OpenDcpIndex(FileSystem& fs, const std::string& path,
                                                    ReaderOptions& options, DcpIndex index);
StoredNames NamesOfDcpIndex(const DcpIndex& index);

// A directory of torch.distributed.checkpoint, as dcp.save() of {"model": ..., "optimizer": ...} leaves it.
//
// model.NAME, optimizer.state.NAME.{STATE,step,master_param} and optimizer.param_groups.0.*,
// NAME canonical; or in the form that a DCP source had (DcpForm). Each tensor is cut in boxes: across the
// ranks of the axes that cut it, and in rows over data parallel ones (of experts, if it is of experts) as
// FSDP2 does; each rank's boxes lie in its file, and torch's loader puts together what any other world asks
// for. The item "cairn" carries the model, its parameters and the state for our own reader. Source:
// torch 2.11, distributed/checkpoint/{metadata,filesystem}.py, _nested_dict.py.
Result<TargetFiles> PlanDcp(const CheckpointSource& source, const TargetOptions& options);

}  // namespace cairn
