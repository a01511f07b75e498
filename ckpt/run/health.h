// Whether a step is worth resuming from: the losses that its training saw up to the save, and after it.
//
// A step's own record is in manifest.state["health"]. The loss of iteration k + 1 is the first that shows how
// good the weights of step k are, so later steps count too: a bad iteration right after it makes a step
// unhealthy, a good step later in the same session makes it healthy again. So no isolated bad batch condemns
// a step for good. A step without a record (older or converted) counts as healthy. FORMAT.md, "Health".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/model/manifest.h"

namespace cairn {

struct Health {
  // That of the last iteration. May be infinite or NaN.
  double loss = 0;
  double grad_norm = 0;
  // In a row, up to the save. Bad: the loss is not finite, or the update was skipped and no loss scale
  // explains it.
  int64_t bad_iterations = 0;
  int64_t first_bad_iteration = 0;  // of those
  int64_t skipped_iterations = 0;   // in a row, explained or not
  uint64_t nonfinite = 0;           // saved values that are infinite or NaN
  std::string session;              // of the process group that saved it; empty: not known
  std::string accused;              // the session of step first_bad_iteration - 1; empty: not known
  bool operator==(const Health&) const = default;
};

nlohmann::json ToJson(const Health& health);
// The record in the manifest's `state`. nullopt if there is none, or it has another form.
std::optional<Health> HealthOf(const nlohmann::json& state);

// Why the step is unhealthy by its own record, in a few words; empty if it is healthy.
std::string WhyUnhealthy(const Health& health);
inline bool Healthy(const Health& health) { return WhyUnhealthy(health).empty(); }
// By its own record only; use Verdicts() if the step's successors are known.
bool Healthy(const Manifest& manifest);

struct JudgedStep {
  int64_t step = 0;
  std::optional<Health> health;  // nullopt: unknown
  std::string run;
};

// Written by a training that stopped for bad iterations, about the step before them (run_health.h).
struct Condemnation {
  std::string run;
  int64_t step = 0;
  std::string session;  // of the step
  int64_t bad_iterations = 0;
  bool operator==(const Condemnation&) const = default;
};

// For each step, in the same order, why it is unhealthy; empty if it is healthy. The steps are of one run
// directory, in any order. Pure.
std::vector<std::string> Verdicts(std::span<const JudgedStep> steps,
                                  std::span<const Condemnation> condemned = {});

}  // namespace cairn
