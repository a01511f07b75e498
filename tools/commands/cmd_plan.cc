// Complete the options, take a calibration, search, and print the best plans with their costs. Job scripts
// come before the output, and all their paths are checked before the first one is written: old scripts never
// mix with new ones.

#include <memory>
#include <nlohmann/json.hpp>

#include "ckpt/io/file_system.h"
#include "ckpt/step/partial_dir.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/commands/commands.h"
#include "tools/commands/plan_checkpoints.h"
#include "tools/commands/plan_options.h"
#include "tools/commands/plan_output.h"
#include "tools/plan/sbatch.h"

namespace cairn {
namespace {

Result<Calibration> CalibrationOf(const PlanFlags& options) {
  const PlanRequest& request = options.request;
  if (options.calibrate.empty()) return BuiltInCalibration(request.cluster, request.setup.program);
  CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(options.calibrate));
  CAIRN_ASSIGN_OR_RETURN(const RunRows runs,
                         ParseRunRows(table, true, request.cluster, {}, request.setup.program));
  return Calibrate(runs.rows, options.request.cluster);
}

// The path of each script. Nothing is written if one of them exists.
Result<std::vector<std::string>> WriteScripts(const PlanFlags& options, const std::vector<PlanFacts>& plans) {
  FileSystem& fs = FileSystem::Posix();
  std::vector<std::string> paths;
  for (const PlanFacts& plan : plans) {
    paths.push_back(JoinPath(options.sbatch, JobName(options.request, plan.candidate.setup) + ".sbatch"));
    if (fs.Stat(paths.back()).ok())
      return AlreadyExists("{} already exists; give another directory", paths.back());
  }
  if (options.dry_run) return paths;
  CAIRN_RETURN_IF_ERROR(MakeOutputDir(fs, options.sbatch));
  JobOptions job{.samples = SamplesOf(options),
                 .time = options.time_limit,
                 .array = options.array,
                 .arguments = options.sbatch_args};
  for (size_t i = 0; i < plans.size(); ++i) {
    job.save_interval = plans[i].save_interval;
    CAIRN_RETURN_IF_ERROR(
        WriteSmallFile(fs, paths[i], JobScriptText(options.request, plans[i].candidate.setup, job)));
  }
  return paths;
}

Result<int> RunPlan(CLI::App& app, PlanFlags& options) {
  if (app.count("--checkpoints") > 0)
    return PlanCheckpoints(app, options.checkpoints,
                           {.nodes = app.count("--nodes") > 0 ? options.request.nodes : 0,
                            .mtbf_hours = app.count("--mtbf") > 0 ? options.mtbf_hours : 0,
                            .keep_last = options.keep_last,
                            .quota_bytes = options.quota_bytes,
                            .json = options.json});
  CAIRN_RETURN_IF_ERROR(CompletePlanOptions(app, options));
  CAIRN_ASSIGN_OR_RETURN(const Calibration calibration, CalibrationOf(options));
  CAIRN_ASSIGN_OR_RETURN(const SearchResult result, Search(options.request, calibration, options.top));
  std::vector<PlanFacts> plans;
  for (const Candidate& candidate : result.best) plans.push_back(FactsOf(options, candidate, calibration));
  std::vector<std::string> scripts;
  if (!options.sbatch.empty()) {
    CAIRN_ASSIGN_OR_RETURN(scripts, WriteScripts(options, plans));
  }
  std::vector<ShapeProposal> shapes;
  if (options.hidden_near > 0) {
    CAIRN_ASSIGN_OR_RETURN(shapes,
                           ShapesNear(options.request, calibration, options.hidden_near, options.top));
  }
  if (options.json) {
    nlohmann::ordered_json json = PlansToJson(options, result, plans);
    if (options.hidden_near > 0) json["shapes"] = ShapesToJson(shapes);
    if (!options.sbatch.empty()) json["scripts"] = scripts;
    PrintJson(json);
  } else {
    PrintPlans(options, result, plans);
    if (options.hidden_near > 0) PrintShapes(options, shapes);
    for (const std::string& script : scripts)
      fmt::print("{} {}\n", options.dry_run ? "would write" : "wrote", script);
  }
  if (!plans.empty()) return kExitDone;
  PrintProblem("no plan is left; the table above shows how many each rule excluded");
  return kExitCheckFailed;
}

}  // namespace

void AddPlanCommand(CLI::App& app, Verb& verb) {
  const auto options = std::make_shared<PlanFlags>();
  CLI::App* plan = app.add_subcommand(
      "plan", "find the fastest ways to cut a model over a cluster, and predict their time and memory");
  DeclarePlanOptions(*plan, *options);
  plan->require_subcommand(0, 1);
  AddPlanPredict(*plan, verb);
  plan->footer(
      "Plans are ranked by seconds of an iteration. Runs of jean-zay (82, Megatron-DeepSpeed), selene (7) "
      "and\n"
      "nvidia-h100 (5, both Megatron-LM) are built in, and plans for these clusters are fitted on them. The "
      "bounds of other\n"
      "clusters are as wide as clusters were found to differ; --calibrate with three runs of your own "
      "narrows them. FP8,\n"
      "ZeRO 2 and 3 and offloading follow from the same physics and are not measured.\n"
      "Keys of a cluster's TOML: base = \"a100-80\", gpus-per-node, memory-gb, half-tflops, single-tflops, "
      "bf16, fp8, sms,\n"
      "hbm-gbps, link-gbps (of a GPU), nic-gbps (of a node), pcie-gbps; for ranks on CPUs cpu = true, and "
      "cores of a node,\n"
      "which the ranks share and of which each is as fast as the other keys say.\n"
      "How often to save where: cairn plan --checkpoints run --log train.log --tier "
      "memory:stall=0.5,save=2\n\n" +
      HelpFooter("cairn plan --cluster jean-zay --num-layers 72 --hidden-size 14336 --num-attention-heads 64 "
                 "--vocab-size "
                 "250000 --nodes 48 "
                 "--global-batch-size 2048 --recompute full",
                 "no plan is left"));
  plan->callback([options, plan, &verb] {
    if (plan->get_subcommands().empty()) verb = [options, plan] { return RunPlan(*plan, *options); };
  });
}

}  // namespace cairn
