// The rules of topology, each with its reason, in the order in which they are applied.
#include <numeric>

#include "tools/plan/search.h"
#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

bool Divides(int64_t part, int64_t whole) { return part > 0 && whole % part == 0; }

// What TP must divide: the widths of MLPs that are not experts.
int64_t DenseFfn(const ModelShape& shape) {
  const int64_t all = shape.modules.Has("mlp.up") ? shape.Ffn() : 0;
  return std::gcd(all, shape.modules.Has("mlp.shared.up") ? shape.shared_ffn : 0);
}

void AddExperts(const PlanRequest& request, std::vector<Rule>& rules) {
  const ModelShape& shape = request.shape;
  const int node = request.cluster.gpus_per_node;
  rules.push_back({"experts % ep, expert ffn % etp == 0",
                   fmt::format("each rank holds as many of {} experts, cut evenly", shape.experts),
                   [&shape](const RunSetup& s) {
                     return Divides(s.ep, shape.experts) && Divides(s.etp, shape.expert_ffn);
                   }});
  rules.push_back({"tp * dp % (ep * etp) == 0", "EP and ETP divide the ranks of a stage",
                   [](const RunSetup& s) { return Divides(s.ep * s.etp, s.tp * s.dp); }});
  rules.push_back({"etp within a node",
                   fmt::format("every layer gathers tokens over the links of one node of {}", node),
                   [node](const RunSetup& s) { return s.etp <= node; }});
}

void AddCuts(const PlanRequest& request, std::vector<Rule>& rules) {
  const ModelShape& shape = request.shape;
  const int node = request.cluster.gpus_per_node;
  rules.push_back({"tp within a node",
                   fmt::format("all-reduces of every layer need the links of one node of {}", node),
                   [node](const RunSetup& s) { return s.tp <= node && Divides(s.tp, node); }});
  rules.push_back(
      {"heads % tp == 0", fmt::format("each rank holds whole heads of {}", shape.heads),
       [&shape](const RunSetup& s) { return Divides(s.tp, shape.heads) && Divides(s.tp, shape.KvHeads()); }});
  rules.push_back({"hidden, ffn % tp == 0", "matrices are cut evenly", [&shape](const RunSetup& s) {
                     return Divides(s.tp, shape.hidden) && Divides(s.tp, DenseFfn(shape));
                   }});
  if (shape.experts > 0) AddExperts(request, rules);
  const bool accounted = request.embeddings_as_layers && request.setup.program != Program::kCairn;
  rules.push_back({"stages of whole layers",
                   fmt::format("the program cuts {} layers{}; the slowest stage sets the pace", shape.layers,
                               accounted ? ", the embedding and the output layer" : ""),
                   [&shape, accounted](const RunSetup& s) {
                     if (accounted && s.pp > 2 && s.first_layers == 0) return false;
                     return StagesAreWhole(shape, s);
                   }});
  rules.push_back({"v > 1 needs pp > 1, gas % pp == 0",
                   "interleaved stages run micro-batches in groups of pp", [](const RunSetup& s) {
                     return s.virtual_stages == 1 || (s.pp > 1 && Divides(s.pp, s.MicroBatches()));
                   }});
}

void AddBatches(const PlanRequest& request, std::vector<Rule>& rules) {
  const int64_t batch = request.setup.global_batch;
  rules.push_back({"gbs % (mbs * dp) == 0",
                   fmt::format("every rank gets whole micro-batches of {} samples", batch),
                   [batch](const RunSetup& s) { return Divides(s.micro_batch * s.dp, batch); }});
  if (!request.rampup.empty()) {
    const int64_t start = request.rampup[0], step = request.rampup[1];
    rules.push_back({"ramp-up % (mbs * dp) == 0",
                     fmt::format("batches {}, {}, ... must divide too", start, start + step),
                     [start, step](const RunSetup& s) {
                       return Divides(s.micro_batch * s.dp, start) && Divides(s.micro_batch * s.dp, step);
                     }});
    if (step % 32 == 0)
      rules.push_back({"ramp-up by 32: dp % 4, gbs % 32",
                       "steps of 32 samples need dp % 4 == 0 and gbs % 32 == 0",
                       [batch](const RunSetup& s) { return s.dp % 4 == 0 && batch % 32 == 0; }});
  }
  if (request.fused_softmax && request.setup.precision != Precision::kFp32) {
    const int64_t heads = request.shape.heads;
    rules.push_back({"(heads / tp) * mbs % 4 == 0", "Megatron's fused softmax runs blocks of 4",
                     [heads](const RunSetup& s) { return heads / s.tp * s.micro_batch % 4 == 0; }});
  }
}

void AddZero(const PlanRequest& request, std::vector<Rule>& rules) {
  rules.push_back({"zero > 0 needs dp > 1", "one replica has nothing to spread: the same as zero 0",
                   [](const RunSetup& s) { return s.zero == 0 || s.dp > 1; }});
  rules.push_back({"zero > 1 needs pp == 1",
                   "a pipeline accumulates gradients over micro-batches, which zero 2 scatters at once",
                   [](const RunSetup& s) { return s.zero <= 1 || s.pp == 1; }});
  if (request.setup.program == Program::kMegatronLm)
    rules.push_back({"zero <= 1", "Megatron-LM's distributed optimizer is zero 1",
                     [](const RunSetup& s) { return s.zero <= 1; }});
  if (request.setup.program == Program::kCairn)
    rules.push_back(
        {"cairn train runs it", "full or no recomputation; no virtual stages", [](const RunSetup& s) {
           return s.virtual_stages == 1 && s.recompute != Recomputation::kSelective;
         }});
}

}  // namespace

std::vector<Rule> RulesOf(const PlanRequest& request) {
  std::vector<Rule> rules;
  AddCuts(request, rules);
  AddBatches(request, rules);
  AddZero(request, rules);
  return rules;
}

}  // namespace cairn
