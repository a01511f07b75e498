// A directory of torch.distributed.checkpoint, as dcp.save() of {"model": ..., "optimizer": ...} leaves it.
//
// model.NAME, optimizer.state.NAME.{exp_avg,exp_avg_sq,step,master_param} and optimizer.param_groups.0.*,
// NAME canonical; or in the form that a DCP source had (DcpForm). Each tensor is cut in boxes: across tensor
// parallel ranks where it is, and in rows over data parallel ones as FSDP2 does; each rank's boxes lie in its
// file, and torch's loader puts together what any other world asks for. The item "cairn" carries the model,
// its parameters and the state for our own reader. Source: torch 2.11,
// distributed/checkpoint/{metadata,filesystem}.py, _nested_dict.py.
#pragma once

#include "convert/foreign/write_options.h"

namespace cairn {

Result<TargetFiles> PlanDcp(const CheckpointSource& source, const TargetOptions& options);

}  // namespace cairn
