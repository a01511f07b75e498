// FactsOf adds the cost of training and of saving to a candidate of the search; the rest shows these facts
// as text or JSON. The table has a row for each plan, and only the first plan shows the parts of its memory
// and time. The rules come last, since they explain an empty table.

#include "tools/commands/plan_output.h"

#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/plan/sbatch.h"
#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

const char* NameOf(Recomputation recompute) {
  using Named = std::pair<const char*, Recomputation>;
  return std::ranges::find(kRecomputations, recompute, &Named::second)->first;
}

std::string ParametersText(double params) {
  return params >= 1e9 ? fmt::format("{:.2f} B", params / 1e9) : fmt::format("{:.2f} M", params / 1e6);
}

std::string Percent(double part, double whole) { return fmt::format("{:.1f} %", 100 * part / whole); }

// Within the steady part: `of_layer` for all layers and micro-batches of a rank.
double SteadySeconds(double of_layer, const PlanFacts& plan, int64_t layers) {
  const RunSetup& s = plan.candidate.setup;
  return of_layer * layers / s.pp * s.MicroBatches();
}
double TensorParallelSeconds(const PlanFacts& plan, int64_t layers) {
  const LayerTime& layer = plan.prediction.time.layer;
  return SteadySeconds(layer.tensor_parallel + layer.latency, plan, layers);
}
double AllToAllSeconds(const PlanFacts& plan, int64_t layers) {
  return SteadySeconds(plan.prediction.time.layer.dispatch, plan, layers);
}

// Layers of the stages: "12", or of first, middle and last "11/12/11".
std::string StagesText(const ModelShape& shape, const RunSetup& setup) {
  const StageLayers layers = PlannedStages(shape, setup);
  const bool even = layers.first == layers.last && (setup.pp <= 2 || layers.first == layers.middle);
  if (even) return fmt::format("{:g}", layers.first);
  if (setup.pp == 2) return fmt::format("{:g}/{:g}", layers.first, layers.last);
  return fmt::format("{:g}/{:g}/{:g}", layers.first, layers.middle, layers.last);
}

std::vector<std::string> Row(const ModelShape& shape, size_t rank, const PlanFacts& plan, bool with_days) {
  const RunSetup& s = plan.candidate.setup;
  const Prediction& p = plan.prediction;
  std::vector<std::string> row;
  for (const int64_t n : {static_cast<int64_t>(rank), s.gpus, s.tp, s.pp}) row.push_back(std::to_string(n));
  row.push_back(StagesText(shape, s));
  row.push_back(std::to_string(s.virtual_stages));
  if (shape.experts > 0) row.insert(row.end(), {std::to_string(s.ep), std::to_string(s.etp)});
  for (const int64_t n : {s.dp, s.micro_batch, s.MicroBatches(), s.zero}) row.push_back(std::to_string(n));
  row.insert(row.end(),
             {NameOf(s.recompute), fmt::format("{:.4g}", p.seconds.value),
              fmt::format("{:.3g} - {:.3g}", p.seconds.low, p.seconds.high), fmt::format("{:.1f}", p.tflops),
              fmt::format("{:.1f}", p.memory_gb.value), fmt::format("{:.0f} %", 100 * p.fit_probability),
              Percent(p.time.bubble, p.time.Total())});
  if (with_days)
    row.insert(row.end(),
               {fmt::format("{:.1f}", plan.training.days), fmt::format("{:.0f}", plan.training.gpu_hours)});
  return row;
}

void PrintMemory(const PlanFacts& plan) {
  TextTable table(
      {"GB a GPU", "parameters", "gradients", "optimizer", "in flight", "activations", "buffers", "all"});
  const PipelineMemory& memory = plan.prediction.memory;
  const std::pair<const char*, const StageMemory*> stages[] = {
      {"first stage", &memory.first}, {"middle stage", &memory.middle}, {"last stage", &memory.last}};
  for (const auto& [name, stage] : stages) {
    std::vector<std::string> row = {name};
    for (const double gb : {stage->parameters, stage->gradients, stage->optimizer, stage->in_flight,
                            stage->activations, stage->buffers, stage->Total()})
      row.push_back(fmt::format("{:.2f}", gb));
    table.Add(row);
  }
  table.Print();
}

void PrintTime(const PlanFlags& options, const PlanFacts& plan) {
  const IterationTime& t = plan.prediction.time;
  const ModelShape& shape = options.request.shape;
  fmt::print(
      "An iteration: {:.4g} s = {:.4g} s of micro-batches (TP {:.3g} s, {}handing over {:.3g} s) + bubble "
      "{:.3g} s + "
      "data parallel {:.3g} s + optimizer {:.3g} s{}\n",
      t.Total(), t.steady, TensorParallelSeconds(plan, shape.layers),
      shape.experts > 0 ? fmt::format("all-to-all {:.3g} s, ", AllToAllSeconds(plan, shape.layers)) : "",
      t.hand_over * plan.candidate.setup.MicroBatches(), t.bubble, t.data_parallel, t.optimizer,
      t.turns > 0 ? fmt::format(" + {:.3g} s of turns on shared cores", t.turns) : "");
}

void PrintSpeed(const PlanFlags& options, const PlanFacts& plan) {
  const Prediction& p = plan.prediction;
  const double peak = options.request.cluster.PeakFlops(options.request.setup.precision) / 1e12;
  fmt::print(
      "TFLOPs a GPU: {:.1f} of the hardware (with recomputation and all of attention, as in published "
      "tables),\n"
      "{:.1f} of the model ({:.1f} % of the peak; as in the logs of Megatron-LM and cairn train)\n",
      p.tflops, p.model_tflops, 100 * p.model_tflops / peak);
}

void PrintCosts(const PlanFlags& options, const PlanFacts& plan) {
  if (plan.training.days > 0)
    fmt::print("Training: {:.0f} iterations, {:.1f} days ({:.1f} of them ramp-up), {:.0f} GPU-hours\n",
               plan.training.iterations, plan.training.days, plan.training.rampup_days,
               plan.training.gpu_hours);
  const CheckpointCost& c = plan.checkpoint;
  fmt::print(
      "Checkpoint: {} in {} files ({} of weights), durable after {} at {} GB/s a node; archived as {} in {} "
      "files\n",
      HumanBytes(c.bytes), c.files, HumanBytes(c.weight_bytes), HumanSeconds(c.save_seconds),
      options.node_gbps, HumanBytes(c.bytes), c.archive_inodes);
  fmt::print("Save every {} steps ({}): a node fails once in {:g} hours\n", plan.save_interval,
             HumanSeconds(plan.save_interval * plan.prediction.seconds.value), options.mtbf_hours);
}

// The sum of all checkpoints, and what of it a quota holds.
void PrintStorage(const PlanFlags& options, const PlanFacts& plan) {
  const StorageCost& s = plan.storage;
  if (s.saves > 0)
    fmt::print(
        "All {:.0f} checkpoints: {} written in {:.0f} files, in saves {:.1f} of {:.1f} days; {} kept in "
        "{:.0f} files "
        "({}); archived as {} in {:.0f} files\n",
        s.saves, HumanBytes(s.bytes), s.files, s.save_days, plan.training.days, HumanBytes(s.kept_bytes),
        s.kept_files,
        options.keep_last > 0
            ? fmt::format("--keep-last {}, and one that is being written", options.keep_last)
            : "without --keep-last",
        HumanBytes(s.archive_bytes), s.archive_files);
  if (options.quota_bytes == 0) return;
  const double quota = static_cast<double>(options.quota_bytes);
  fmt::print("A quota of {} holds {:.0f} checkpoints{}\n", HumanBytes(quota),
             std::floor(quota / plan.checkpoint.bytes),
             s.saves == 0            ? ""
             : s.kept_bytes <= quota ? fmt::format(": those kept take {}", Percent(s.kept_bytes, quota))
                                     : fmt::format(": too few by {}", HumanBytes(s.kept_bytes - quota)));
}

void PrintModel(const PlanFlags& options) {
  const ModelShape& m = options.request.shape;
  const Cluster& c = options.request.cluster;
  const std::string active =
      m.experts > 0 ? fmt::format(", {} of them active", ParametersText(m.ActiveParams())) : "";
  fmt::print("{} parameters{}: {} layers, hidden {}, {} heads of {}, vocabulary {}, sequence {}\n",
             ParametersText(m.TotalParams()), active, m.layers, m.hidden, m.heads, m.HeadDim(), m.vocab,
             m.seq);
  if (m.experts > 0)
    fmt::print(
        "{} experts of {} in a mixture, of which a token visits {}{}\n", m.experts, m.expert_ffn,
        m.experts_per_token,
        m.modules.Has("mlp.shared.up") ? fmt::format(", and one of {} that all visit", m.shared_ffn) : "");
  fmt::print("{}: up to {} nodes of {} GPUs, {} GB and {} TFLOPs each\n", c.name, options.request.nodes,
             c.gpus_per_node, c.memory_gb, c.PeakFlops(options.request.setup.precision) / 1e12);
  fmt::print("Memory as {} holds it. ", NameOf(options.request.setup.program));
  if (!options.calibrate.empty())
    fmt::print("Times are fitted on {}.\n", options.calibrate);
  else if (c.measured.empty())
    fmt::print(
        "No run of this cluster was measured, so bounds allow for any cluster (--calibrate runs.csv).\n");
  else
    fmt::print("Times are fitted on the runs of {} that are built in.\n", c.measured);
  if (m.experts > 0)
    fmt::print(
        "No run of a mixture was fitted on, so bounds are twice as wide. The router is taken to be in "
        "balance; a token "
        "crosses the\n"
        "network once for each node that has one of its experts (--moe-token-dispatcher-type flex with "
        "DeepEP), and "
        "nothing hides that.\n");
  if (m.hidden % 128 != 0)
    fmt::print("hidden % 128 is {}: the last tile of every product is not full\n", m.hidden % 128);
  if (m.hidden % c.sms != 0)
    fmt::print("hidden % {} SMs is {}: the last wave of some products may not be full{}\n", c.sms,
               m.hidden % c.sms,
               m.experts > 0 ? "" : fmt::format(" (--for-hidden-near {} proposes others)", m.hidden));
  if (m.HeadDim() % 8 != 0)
    fmt::print("head dimension {} is not a multiple of 8: attention runs without tensor cores\n",
               m.HeadDim());
}

void PrintRules(const SearchResult& result) {
  fmt::print("\n{} combinations, {} kept. Ruled out, each by the first rule that it breaks:\n",
             result.considered, result.kept);
  TextTable table({"rule", "ruled out", "why"});
  for (const Rule& rule : result.rules) table.Add({rule.name, std::to_string(rule.ruled_out), rule.why});
  table.Print();
}

ordered_json ToJson(const StageMemory& m) {
  return {{"parameters_gb", m.parameters}, {"gradients_gb", m.gradients},     {"optimizer_gb", m.optimizer},
          {"in_flight_gb", m.in_flight},   {"activations_gb", m.activations}, {"buffers_gb", m.buffers},
          {"total_gb", m.Total()}};
}

ordered_json ToJson(const Estimate& e) { return {{"value", e.value}, {"low", e.low}, {"high", e.high}}; }

ordered_json ToJson(const ModelShape& shape, const RunSetup& s) {
  const StageLayers layers = PlannedStages(shape, s);
  ordered_json json = {{"gpus", s.gpus},
                       {"tp", s.tp},
                       {"pp", s.pp},
                       {"virtual_stages", s.virtual_stages},
                       {"first_layers", layers.first},
                       {"middle_layers", layers.middle},
                       {"last_layers", layers.last},
                       {"dp", s.dp},
                       {"mbs", s.micro_batch},
                       {"gas", s.MicroBatches()},
                       {"gbs", s.global_batch},
                       {"zero", s.zero},
                       {"recompute", NameOf(s.recompute)},
                       {"offload_optimizer", s.offload_optimizer}};
  if (shape.experts > 0) json.update({{"ep", s.ep}, {"etp", s.etp}, {"expert_dp", s.ExpertReplicas()}});
  return json;
}

ordered_json ToJson(const PlanFlags& options, const PlanFacts& plan) {
  const Prediction& p = plan.prediction;
  ordered_json json = ToJson(options.request.shape, plan.candidate.setup);
  json["flags"] = LaunchFlags(options.request.shape, plan.candidate.setup);
  json["sec_per_it"] = ToJson(p.seconds);
  json["mem_gb"] = ToJson(p.memory_gb);
  json["fit_probability"] = p.fit_probability;
  json["tflops"] = p.tflops;
  json["model_tflops"] = p.model_tflops;
  json["memory"] = {{"first", ToJson(p.memory.first)},
                    {"middle", ToJson(p.memory.middle)},
                    {"last", ToJson(p.memory.last)}};
  json["time"] = {{"micro_batches_s", p.time.steady},
                  {"tensor_parallel_s", TensorParallelSeconds(plan, options.request.shape.layers)},
                  {"hand_over_s", p.time.hand_over * plan.candidate.setup.MicroBatches()},
                  {"bubble_s", p.time.bubble},
                  {"data_parallel_s", p.time.data_parallel},
                  {"optimizer_s", p.time.optimizer},
                  {"turns_s", p.time.turns}};
  if (options.request.shape.experts > 0)
    json["time"]["all_to_all_s"] = AllToAllSeconds(plan, options.request.shape.layers);
  if (plan.training.days > 0)
    json["training"] = {{"iterations", plan.training.iterations},
                        {"days", plan.training.days},
                        {"rampup_days", plan.training.rampup_days},
                        {"gpu_hours", plan.training.gpu_hours}};
  const CheckpointCost& c = plan.checkpoint;
  json["checkpoint"] = {{"bytes", c.bytes},
                        {"weight_bytes", c.weight_bytes},
                        {"files", c.files},
                        {"save_seconds", c.save_seconds},
                        {"save_interval", plan.save_interval},
                        {"archive_bytes", c.bytes},
                        {"archive_inodes", c.archive_inodes}};
  if (const StorageCost& s = plan.storage; s.saves > 0)
    json["storage"] = {{"saves", s.saves},
                       {"bytes", s.bytes},
                       {"files", s.files},
                       {"kept_bytes", s.kept_bytes},
                       {"kept_files", s.kept_files},
                       {"archive_bytes", s.archive_bytes},
                       {"archive_files", s.archive_files},
                       {"save_days", s.save_days}};
  if (options.quota_bytes > 0)
    json["quota"] = {
        {"bytes", options.quota_bytes},
        {"fits", std::max(plan.storage.kept_bytes, c.bytes) <= static_cast<double>(options.quota_bytes)}};
  return json;
}

ordered_json ToJson(const ModelShape& m) {
  ordered_json json = {{"layers", m.layers}, {"hidden", m.hidden}, {"heads", m.heads},
                       {"seq", m.seq},       {"vocab", m.vocab},   {"parameters", m.TotalParams()}};
  if (m.experts > 0)
    json.update({{"active_parameters", m.ActiveParams()},
                 {"experts", m.experts},
                 {"experts_per_token", m.experts_per_token}});
  return json;
}

}  // namespace

PlanFacts FactsOf(const PlanFlags& options, const Candidate& candidate, const Calibration& calibration) {
  const PlanRequest& request = options.request;
  PlanFacts facts{candidate, Predict(request.shape, candidate.setup, request.cluster, calibration)};
  if (SamplesOf(options) > 0)
    facts.training = CostOf(request, candidate.setup, calibration.time.constants, SamplesOf(options));
  facts.checkpoint = CheckpointOf(request, candidate.setup, options.node_gbps);
  const double nodes = std::ceil(static_cast<double>(candidate.setup.gpus) / request.cluster.gpus_per_node);
  facts.save_interval = SaveInterval(facts.checkpoint.save_seconds, options.mtbf_hours * 3600 / nodes,
                                     facts.prediction.seconds.value);
  if (facts.training.iterations > 0)
    facts.storage =
        StorageOf(facts.training.iterations, facts.checkpoint, facts.save_interval, options.keep_last);
  return facts;
}

void PrintPlans(const PlanFlags& options, const SearchResult& result, const std::vector<PlanFacts>& plans) {
  PrintModel(options);
  const bool with_days = SamplesOf(options) > 0;
  if (!plans.empty()) {
    std::vector<std::string> header = {"", "GPUs", "TP", "PP", "layers", "v"};
    if (options.request.shape.experts > 0) header.insert(header.end(), {"EP", "ETP"});
    header.insert(header.end(), {"DP", "MBS", "GAS", "ZeRO", "recompute", "sec/it", "9 of 10", "TFLOPs",
                                 "mem GB", "fits", "bubble"});
    if (with_days) header.insert(header.end(), {"days", "GPU-hours"});
    TextTable table(header);
    for (size_t i = 0; i < plans.size(); ++i)
      table.Add(Row(options.request.shape, i + 1, plans[i], with_days));
    fmt::print("\n");
    table.Print();
    fmt::print("\nThe first of them:\n");
    PrintMemory(plans.front());
    PrintTime(options, plans.front());
    PrintSpeed(options, plans.front());
    PrintCosts(options, plans.front());
    PrintStorage(options, plans.front());
    const auto flags = LaunchFlags(options.request.shape, plans.front().candidate.setup);
    fmt::print("{} takes it as {}\n", ShortNameOf(options.request.setup.program), fmt::join(flags, " "));
  }
  PrintRules(result);
}

void PrintShapes(const PlanFlags& options, const std::vector<ShapeProposal>& shapes) {
  fmt::print("\nShapes of about {:.1f} B near hidden {}:\n", options.request.shape.TotalParams() / 1e9,
             options.hidden_near);
  TextTable table({"hidden", "layers", "heads", "head dim", "B", "tiles", "waves", "GPUs", "TP", "PP", "DP",
                   "MBS", "sec/it", "sec/it at equal size"});
  for (const ShapeProposal& s : shapes) {
    const RunSetup& r = s.best.setup;
    std::vector<std::string> row;
    for (const int64_t n : {s.shape.hidden, s.shape.layers, s.shape.heads, s.shape.HeadDim()})
      row.push_back(std::to_string(n));
    row.push_back(fmt::format("{:.1f}", s.shape.TotalParams() / 1e9));
    row.push_back(s.whole_tiles ? "whole" : "-");
    row.push_back(s.whole_waves ? "whole" : "-");
    for (const int64_t n : {r.gpus, r.tp, r.pp, r.dp, r.micro_batch}) row.push_back(std::to_string(n));
    row.push_back(fmt::format("{:.2f}", s.best.seconds));
    row.push_back(fmt::format("{:.2f}", s.seconds_of_size));
    table.Add(row);
  }
  table.Print();
}

ordered_json ShapesToJson(const std::vector<ShapeProposal>& shapes) {
  ordered_json list = ordered_json::array();
  for (const ShapeProposal& s : shapes) {
    ordered_json json = ToJson(s.shape);
    json["whole_tiles"] = s.whole_tiles;
    json["whole_waves"] = s.whole_waves;
    json["plan"] = ToJson(s.shape, s.best.setup);
    json["sec_per_it"] = s.best.seconds;
    json["sec_per_it_at_equal_size"] = s.seconds_of_size;
    list.push_back(std::move(json));
  }
  return list;
}

ordered_json PlansToJson(const PlanFlags& options, const SearchResult& result,
                         const std::vector<PlanFacts>& plans) {
  ordered_json json = {{"model", ToJson(options.request.shape)},
                       {"cluster", options.request.cluster.name},
                       {"considered", result.considered},
                       {"kept", result.kept}};
  for (const Rule& rule : result.rules)
    json["ruled_out"].push_back({{"rule", rule.name}, {"why", rule.why}, {"count", rule.ruled_out}});
  json["plans"] = ordered_json::array();
  for (const PlanFacts& plan : plans) json["plans"].push_back(ToJson(options, plan));
  return json;
}

}  // namespace cairn
