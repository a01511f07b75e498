// Plans as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "tools/commands/plan_options.h"
#include "tools/plan/better_shapes.h"
#include "tools/plan/training.h"

namespace cairn {

// One plan with all printed facts.
struct PlanFacts {
  Candidate candidate;
  Prediction prediction;
  TrainingCost training;  // zeros if no length was given
  CheckpointCost checkpoint;
  int64_t save_interval = 0;  // steps
  StorageCost storage = {};   // zeros if no length was given
};

PlanFacts FactsOf(const PlanFlags& options, const Candidate& candidate, const Calibration& calibration);

void PrintPlans(const PlanFlags& options, const SearchResult& result, const std::vector<PlanFacts>& plans);
void PrintShapes(const PlanFlags& options, const std::vector<ShapeProposal>& shapes);
nlohmann::ordered_json PlansToJson(const PlanFlags& options, const SearchResult& result,
                                   const std::vector<PlanFacts>& plans);
nlohmann::ordered_json ShapesToJson(const std::vector<ShapeProposal>& shapes);

}  // namespace cairn
