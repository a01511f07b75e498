// The progress of a training, which a checkpoint stores in addition to the tensors, for an exact resume.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/run/health.h"

namespace cairn {

inline constexpr int64_t kUnknownSeed = INT64_MIN;  // of another program's training

// The loss over the validation data, of the weights after `iteration`.
struct ValidationLoss {
  int64_t iteration = 0;
  double loss = 0;  // finite
  bool operator==(const ValidationLoss&) const = default;
};

// The saves of this process so far.
struct SaveStats {
  int64_t failed = 0;
  int64_t failed_in_a_row = 0;  // since the last one that is durable
  int64_t copies_differ = 0;    // saves that found it (ckpt/job/copies.h)
  std::string alarm = {};       // of such a save that failed: the training stops
  // The newest step in the run directory: the one resumed from, or saved since.
  std::optional<int64_t> durable_iteration;
  // Set if this process saved it.
  std::optional<double> durable_unix_seconds;
  std::optional<double> seconds;        // from its beginning until it was durable
  std::optional<double> stall_seconds;  // of these, the seconds that the training waited
};

struct TrainState {
  int64_t iteration = 0;         // steps done, skipped ones included
  int64_t consumed_samples = 0;  // fixes the data order and the batch size
  int64_t consumed_tokens = 0;
  int64_t optimizer_steps = 0;    // steps not skipped: Adam's bias correction counts these
  int64_t scheduled_samples = 0;  // of steps not skipped: fixes the learning rate (lr_schedule.h)
  int64_t skipped_iterations = 0;
  int64_t nan_iterations = 0;
  int64_t seed = 0;
  int64_t training_samples = 0;  // of the whole training as it was planned: shapes the data order; 0: unknown
  double loss_scale = 1;
  int64_t loss_scale_good_steps = 0;         // since the last overflow or growth
  int64_t loss_scale_hysteresis = 0;         // overflows still tolerated
  Health health;                             // up to `iteration`
  int64_t epoch = 0;                         // passes over the training data that are complete; 0: or unknown
  std::optional<ValidationLoss> validation;  // the newest; nothing if it was not finite
  std::vector<std::string> data;  // the source of the samples (BlendedDataset::description); empty: unknown
  std::vector<int64_t> data_changes;  // iterations behind which --allow-other-data took other data
  bool operator==(const TrainState&) const = default;

  nlohmann::json ToJson() const;

  // Health may be missing: steps of other programs have none. So may validation, epoch, data,
  // training_samples, and scheduled_samples: Megatron's schedule says them (lr_schedule.num_steps), and
  // Cairn's older steps, whose rate followed the samples consumed, do not. Errors: Corrupt naming the key
  // that is missing, of the wrong type or negative.
  static Result<TrainState> FromJson(const nlohmann::json& json);

  // For a step that another program's training was converted to: a missing field gets the value of a new
  // training, and its name is added to `missing`. Updates and skipped iterations are also read under the
  // names that those programs use. Errors: Corrupt naming a key that is of the wrong type or negative.
  static Result<TrainState> FromOtherProgram(const nlohmann::json& json, std::vector<std::string>& missing);
};

}  // namespace cairn
