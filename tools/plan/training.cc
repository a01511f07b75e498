#include "tools/plan/training.h"

#include <algorithm>
#include <cmath>

#include "tools/plan/formulas.h"

namespace cairn {
namespace {

constexpr double kTarBytes = 500e9;  // of the archive at most, by default (bundle_max)

}  // namespace

TrainingCost CostOf(const PlanRequest& request, const RunSetup& setup, const TimeConstants& constants,
                    double samples) {
  TrainingCost cost;
  double left = samples;
  const auto train = [&](int64_t batch, double most) {
    RunSetup step = setup;
    step.global_batch = batch;
    const double iterations = std::ceil(std::min(most, left) / batch);
    left -= iterations * batch;
    cost.iterations += iterations;
    return DaysToTrain(iterations, TimeOf(request.shape, step, request.cluster, constants).Total());
  };
  if (!request.rampup.empty()) {
    const int64_t start = request.rampup[0], increment = request.rampup[1];
    const double steps = static_cast<double>(setup.global_batch - start) / increment;
    for (int64_t batch = start; batch < setup.global_batch && left > 0; batch += increment)
      cost.rampup_days += train(batch, request.rampup[2] / steps);
  }
  cost.days = cost.rampup_days + (left > 0 ? train(setup.global_batch, left) : 0);
  cost.gpu_hours = cost.days * 24 * setup.gpus;
  return cost;
}

CheckpointCost CheckpointOf(const PlanRequest& request, const RunSetup& setup, double node_gbps) {
  const double params = request.shape.TotalParams();
  CheckpointCost cost;
  cost.weight_bytes = params * (setup.mixed() ? 2 : 4);
  cost.bytes = cost.weight_bytes + params * (setup.mixed() ? 12 : 8);
  cost.files = setup.gpus + 2;
  const double nodes = std::ceil(static_cast<double>(setup.gpus) / request.cluster.gpus_per_node);
  cost.save_seconds = cost.bytes / (nodes * node_gbps * 1e9);
  cost.archive_inodes = 1 + static_cast<int64_t>(std::ceil(cost.bytes / kTarBytes));
  return cost;
}

StorageCost StorageOf(double iterations, const CheckpointCost& checkpoint, int64_t save_interval,
                      int64_t keep_last) {
  StorageCost cost;
  cost.saves = std::ceil(iterations / static_cast<double>(save_interval));
  // At least two are kept, and one more until the newest is committed.
  const double kept = keep_last > 0 ? std::max<double>(2, static_cast<double>(keep_last)) + 1 : cost.saves;
  const auto sum = [&](double steps, double& bytes, double& files) {
    bytes = std::min(steps, cost.saves) * checkpoint.bytes;
    files = std::min(steps, cost.saves) * static_cast<double>(checkpoint.files);
  };
  sum(cost.saves, cost.bytes, cost.files);
  sum(kept, cost.kept_bytes, cost.kept_files);
  cost.archive_bytes = cost.bytes;
  cost.archive_files = cost.saves * static_cast<double>(checkpoint.archive_inodes);
  cost.save_days = cost.saves * checkpoint.save_seconds / 86400;
  return cost;
}

}  // namespace cairn
