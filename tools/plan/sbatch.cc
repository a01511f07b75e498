// The script is a template, job.sbatch; only the flags are computed. It runs srun in the background and
// waits, because bash runs a trap only after a foreground command has ended, but it interrupts a wait. Slurm
// sends USR1 to the batch shell, whose trap passes it to srun; the script then waits again, for the signal
// ended the first wait early. It requeues itself if the signal came and the training exited with status 0,
// and a limited number of times if the training lost a rank or a node; a task of an array leaves both to the
// next task. On a node failure that Slurm notices first, a preemption and `scontrol requeue` Slurm requeues
// it. The job asks for processors and not for tasks: Slurm keeps the number of tasks from the first start,
// and `sbatch
// --nodes=3-4` could not start again on 3.

#include "tools/plan/sbatch.h"

#include <fmt/ranges.h>

#include <cmath>
#include <sstream>

#include "ckpt/base/exit_code.h"
#include "ckpt/base/filled_text.h"
#include "plan_texts.h"
#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

// "181B", "13M"
std::string SizeName(double params) {
  return params >= 1e9 ? fmt::format("{:.0f}B", params / 1e9)
                       : fmt::format("{:.0f}M", std::max(1.0, params / 1e6));
}

constexpr const char* kLlamaFlags[] = {
    "--swiglu",
    "--disable-bias-linear",
    "--normalization RMSNorm",
    "--position-embedding-type rope",
    "--hidden-dropout 0",
    "--attention-dropout 0",
};

std::string CountFlag(std::string_view name, int64_t value) { return fmt::format("--{} {}", name, value); }

// If each end holds as many layers as the others or one less, Megatron-LM counts the embedding and the loss
// as layers instead.
void AddMegatronStages(const ModelShape& shape, const RunSetup& setup, std::vector<std::string>& flags) {
  const StageLayers layers = PlannedStages(shape, setup);
  const auto less = [&](double end) { return static_cast<int64_t>(layers.Most() - end); };
  const int64_t first = less(layers.first), last = less(layers.last);
  if (setup.pp > 2 && first <= 1 && last <= 1) {
    if (first == 1) flags.push_back("--account-for-embedding-in-pipeline-split");
    if (last == 1) flags.push_back("--account-for-loss-in-pipeline-split");
    return;
  }
  flags.push_back(CountFlag("decoder-first-pipeline-num-layers", static_cast<int64_t>(layers.first)));
  flags.push_back(CountFlag("decoder-last-pipeline-num-layers", static_cast<int64_t>(layers.last)));
}

// Recomputation and attention. BigScience's program recomputes all or nothing.
void AddActivations(const RunSetup& setup, std::vector<std::string>& flags) {
  const bool full = setup.recompute == Recomputation::kFull;
  if (full && setup.program == Program::kMegatronDeepSpeed)
    flags.insert(flags.end(), {"--checkpoint-activations", "--deepspeed-activation-checkpointing"});
  else if (full)
    flags.push_back("--recompute-granularity full");
  if (setup.program != Program::kMegatronLm) return;
  if (full) flags.insert(flags.end(), {"--recompute-method uniform", "--recompute-num-layers 1"});
  if (setup.recompute == Recomputation::kSelective) flags.push_back("--recompute-granularity selective");
  if (setup.sequence_parallel) flags.push_back("--sequence-parallel");
  if (setup.flash_attention) flags.push_back("--use-flash-attn");
}

// The flags of cairn train.
std::vector<std::string> TrainerFlags(const PlanRequest& request, const RunSetup& setup, double samples) {
  const ModelShape& m = request.shape;
  std::vector<std::string> flags = {CountFlag("num-layers", m.layers), CountFlag("hidden-size", m.hidden),
                                    CountFlag("num-attention-heads", m.heads)};
  if (m.ffn > 0) flags.push_back(CountFlag("ffn-hidden-size", m.ffn));
  if (m.KeyValueWidth() < m.QueryWidth())
    flags.insert(flags.end(), {"--group-query-attention", CountFlag("num-query-groups", m.kv_heads)});
  if (m.QueryWidth() != m.hidden) flags.push_back(CountFlag("kv-channels", m.HeadDim()));
  if (m.IsGated()) flags.insert(flags.end(), std::begin(kLlamaFlags), std::end(kLlamaFlags));
  flags.insert(flags.end(), {CountFlag("seq-length", m.seq), CountFlag("vocab-size", m.vocab),
                             CountFlag("make-vocab-size-divisible-by", m.vocab_multiple)});
  if (!m.tied) flags.push_back("--untie-embeddings-and-output-weights");
  RunSetup ours = setup;
  ours.program = Program::kCairn;
  const std::vector<std::string> launch = LaunchFlags(m, ours);
  flags.insert(flags.end(), launch.begin(), launch.end());
  if (!request.rampup.empty())
    flags.push_back(fmt::format("--rampup-batch-size {}", fmt::join(request.rampup, " ")));
  flags.push_back(CountFlag("train-samples", std::llround(samples)));
  if (setup.mixed()) flags.push_back(setup.precision == Precision::kBf16 ? "--bf16" : "--fp16");
  flags.push_back(request.cluster.cpu ? "--device cpu" : "--device cuda");
  return flags;
}

// True if the words contain the flag, as "--flag value" or "--flag=value".
bool Gives(const std::string& arguments, const std::string& flag) {
  std::istringstream words(arguments);
  for (std::string word; words >> word;)
    if (word == flag || word.starts_with(flag + "=")) return true;
  return false;
}

constexpr int kSaveMinutes = 10;   // before its limit the job saves
constexpr int kMaxRestarts = 100;  // of a job that lost a rank or a node
constexpr char kDataFlag[] =
    "--data-path \"${DATA_PATH:?set DATA_PATH to the prefix of the indexed dataset (cairn data makes one)}\"";

}  // namespace

std::vector<std::string> LaunchFlags(const ModelShape& shape, const RunSetup& setup) {
  std::vector<std::string> flags = {CountFlag("tensor-model-parallel-size", setup.tp),
                                    CountFlag("pipeline-model-parallel-size", setup.pp)};
  const bool uneven = setup.first_layers > 0 || setup.last_layers > 0;
  const bool megatron = setup.program == Program::kMegatronLm;
  if (uneven && megatron) AddMegatronStages(shape, setup, flags);
  if (uneven && setup.program == Program::kMegatronDeepSpeed)
    flags.push_back("--pp-partition-method 'type:transformer|embedding'");
  if (setup.virtual_stages > 1 && megatron)
    flags.push_back(CountFlag("num-virtual-stages-per-pipeline-rank", setup.virtual_stages));
  if (setup.virtual_stages > 1 && !megatron)
    flags.push_back(
        CountFlag("num-layers-per-virtual-pipeline-stage", shape.layers / (setup.pp * setup.virtual_stages)));
  if (shape.experts > 0)
    flags.insert(flags.end(), {CountFlag("expert-model-parallel-size", setup.ep),
                               CountFlag("expert-tensor-parallel-size", setup.etp), "--moe-grouped-gemm"});
  flags.push_back(CountFlag("micro-batch-size", setup.micro_batch));
  flags.push_back(CountFlag("global-batch-size", setup.global_batch));
  if (!megatron)
    flags.push_back(CountFlag("zero-stage", setup.zero));
  else if (setup.zero == 1)
    flags.push_back("--use-distributed-optimizer");
  AddActivations(setup, flags);
  return flags;
}

std::string JobName(const PlanRequest& request, const RunSetup& s) {
  return fmt::format("{}-zero{}-tp{}-mbs-{}-pp{}-dp-{}-gas-{}{}", SizeName(request.shape.TotalParams()),
                     s.zero, s.tp, s.micro_batch, s.pp, s.dp, s.MicroBatches(),
                     s.recompute == Recomputation::kNone ? "-norecompute" : "");
}

std::string JobScriptText(const PlanRequest& request, const RunSetup& setup, const JobOptions& options) {
  const std::string name = JobName(request, setup);
  const int64_t node = std::min<int64_t>(setup.gpus, request.cluster.gpus_per_node);
  const int64_t nodes = (setup.gpus + node - 1) / node;
  const bool data = Gives(options.arguments, "--data-path") || Gives(options.arguments, "--mock-data");
  std::vector<std::string> flags = TrainerFlags(request, setup, options.samples);
  if (options.save_interval > 0 && !Gives(options.arguments, "--save-interval"))
    flags.push_back(CountFlag("save-interval", options.save_interval));
  if (!data) flags.push_back(kDataFlag);
  const std::string tasks = setup.gpus % node == 0 ? fmt::format("$(({} * SLURM_JOB_NUM_NODES))", node)
                                                   : std::to_string(setup.gpus);
  // All tasks of an array are in the queue from the beginning, so each waits while the one before trains.
  const std::string end =
      FilledText(options.array > 0 ? kNextText : kRequeueText,
                 {{"LOST", std::to_string(kExitLostPeer)}, {"RESTARTS", std::to_string(kMaxRestarts)}});
  return FilledText(
      kJobText,
      {{"SHELL", "bash"},  // left out of the template, which shellcheck would read as a script
       {"NAME", name},
       {"NODES", std::to_string(nodes)},
       {"NODE", std::to_string(node)},
       {"TASKS", tasks},
       {"END", end},
       {"ARRAY", options.array > 0 ? fmt::format("#SBATCH --array=1-{}%1\n", options.array) : ""},
       {"GPUS_PER_NODE", request.cluster.cpu ? "" : fmt::format("#SBATCH --gpus-per-node={}\n", node)},
       {"TIME", options.time},
       {"SIGNAL", std::to_string(kSaveMinutes * 60)},
       {"MINUTES", std::to_string(kSaveMinutes)},
       {"FLAGS", fmt::format("{}", fmt::join(flags, "\n  "))},
       {"PREFIX", data ? "" : "DATA_PATH=/path/to/prefix "},
       {"ARGUMENTS", options.arguments.empty() ? "" : " " + options.arguments}});
}

}  // namespace cairn
