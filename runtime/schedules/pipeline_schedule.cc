#include "runtime/schedules/pipeline_schedule.h"

#include <algorithm>
#include <cassert>

namespace cairn {
namespace {

using enum StageAction::Kind;

// `forwards`, and the `backwards` at the same positions, which follow `warmup` actions later.
StageSchedule InTurn(const StageSchedule& forwards, const StageSchedule& backwards, size_t warmup) {
  StageSchedule schedule;
  for (size_t i = 0; i < forwards.size() + warmup; ++i) {
    if (i < forwards.size()) schedule.push_back(forwards[i]);
    if (i >= warmup) schedule.push_back(backwards[i - warmup]);
  }
  return schedule;
}

// The forwards in the other direction through the model: the last chunk first.
StageSchedule Backwards(const PipelineShape& shape, StageSchedule forwards) {
  for (StageAction& action : forwards) {
    action.kind = kBackward;
    action.chunk = shape.chunks - 1 - action.chunk;
  }
  return forwards;
}

StageSchedule WithWarmup(const PipelineShape& shape, int64_t warmup) {
  const StageSchedule forwards = ForwardOnly(shape);
  return InTurn(forwards, Backwards(shape, forwards), std::min<size_t>(warmup, forwards.size()));
}

}  // namespace

StageSchedule ForwardOnly(const PipelineShape& shape) {
  StageSchedule schedule;
  for (int64_t group = 0; group < shape.micro_batches; group += shape.stages)
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int64_t i = group; i < std::min(group + shape.stages, shape.micro_batches); ++i)
        schedule.push_back({kForward, i, chunk});
  return schedule;
}

StageSchedule GPipe(const PipelineShape& shape, int /*stage*/) {
  assert(shape.chunks == 1);
  return WithWarmup(shape, shape.micro_batches);
}

StageSchedule OneForwardOneBackward(const PipelineShape& shape, int stage) {
  assert(shape.chunks == 1);
  return WithWarmup(shape, shape.stages - 1 - stage);
}

// A stage may begin its backwards once the first micro-batch has gone through the other chunks and come back
// to it: `stages` forwards for each chunk but one, and two for each later stage.
StageSchedule Interleaved(const PipelineShape& shape, int stage) {
  assert(shape.micro_batches % shape.stages == 0);
  return WithWarmup(shape, int64_t{shape.chunks - 1} * shape.stages + 2 * (shape.stages - 1 - stage));
}

}  // namespace cairn
