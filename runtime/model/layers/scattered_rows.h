// Activations that all tensor parallel ranks hold, cut by rows for a while: rank r has the r-th part of the
// [b * s] rows. For operations on single rows (dropout), at 1/TP of the memory.
#pragma once

#include <functional>
#include <string_view>

#include "runtime/comm/process_group.h"

namespace cairn {

// All rows of the ranks of `group`, [n, features] in rank order; each holds [n / ranks, features].
at::Tensor GatherRows(const at::Tensor& held, const ProcessGroup& group, std::string_view what);

// each_row(x). x [b, s, h] is the same on all ranks of `tp`, and so is the result. Requires b * s to be a
// multiple of the ranks. `each_row` gets this rank's rows [b * s / tp, h].
at::Tensor OnScatteredRows(const std::function<at::Tensor(const at::Tensor&)>& each_row, const at::Tensor& x,
                           const ProcessGroup& tp);

}  // namespace cairn
