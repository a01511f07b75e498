// Every way to cut a model over a cluster that the rules allow; fastest first.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/plan/calibration.h"

namespace cairn {

// The request of a search. Empty lists stand for all sensible values.
struct PlanRequest {
  ModelShape shape;
  Cluster cluster;
  int64_t nodes = 1;                  // budget; plans may use fewer
  RunSetup setup{.global_batch = 0};  // what all plans have in common: batch, precision, program
  std::vector<int64_t> rampup;        // start, increment, samples; empty: none
  std::vector<int64_t> tp, pp, dp, micro_batches, zero, virtual_stages;
  std::vector<int64_t> ep, etp;  // empty: divisors of the experts; 1 and TP
  std::vector<Recomputation> recompute;
  bool embeddings_as_layers = false;  // only stages in which embedding and output layer count as a layer each
  bool even_stages = false;           // only stages of equal numbers of layers
  bool fused_softmax = true;          // Megatron's kernel, with its condition on heads
  double memory_share = 0.95;         // of the GPU's memory that a plan may need, as predicted
  std::vector<std::string> require;   // conditions: "dp % 4 == 0 && mem_gb < 70"

  int64_t MaxGpus() const { return nodes * cluster.gpus_per_node; }
};

// A rule of topology: its reason, and whether a setup keeps it. Memory and conditions are rules without
// `keeps`.
struct Rule {
  std::string name;
  std::string why;
  std::function<bool(const RunSetup&)> keeps = nullptr;
  int64_t ruled_out = 0;  // by this rule first
};
std::vector<Rule> RulesOf(const PlanRequest& request);

struct Candidate {
  RunSetup setup;
  double seconds = 0;
  double memory_gb = 0;
};

struct SearchResult {
  std::vector<Candidate> best;  // by seconds of an iteration; then fewer GPUs, then less memory
  int64_t considered = 0;
  int64_t kept = 0;
  std::vector<Rule> rules;  // in the order of the checks
};

// Errors: InvalidArgument: sizes that make no model, an expression that cannot be parsed, too many
// combinations.
Result<SearchResult> Search(const PlanRequest& request, const Calibration& calibration, size_t top);

}  // namespace cairn
