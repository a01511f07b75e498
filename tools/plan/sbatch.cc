// The script is one template; what is computed for it are the flags. It runs srun in the background and
// waits, because bash runs a trap only after a foreground command has ended, but it interrupts a wait. Slurm
// sends USR1 to the batch shell, whose trap passes it to srun; the script then waits again, for the signal
// ended the first wait early. It requeues itself only if the signal came and the training exited with status
// 0.

#include "tools/plan/sbatch.h"

#include <fmt/ranges.h>

#include <cmath>
#include <sstream>

#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

// "181B", "13M"
std::string SizeName(double params) {
  return params >= 1e9 ? fmt::format("{:.0f}B", params / 1e9)
                       : fmt::format("{:.0f}M", std::max(1.0, params / 1e6));
}

constexpr std::string_view kLlamaFlags[] = {
    "swiglu",           "disable-bias-linear", "normalization RMSNorm", "position-embedding-type rope",
    "hidden-dropout 0", "attention-dropout 0",
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

// The flags of cairn train, one a line.
std::string Flags(const PlanRequest& request, const RunSetup& setup, double samples) {
  const ModelShape& m = request.shape;
  std::string flags;
  const auto add = [&](std::string_view name, int64_t value) {
    flags += fmt::format("  --{} {}\n", name, value);
  };
  const auto set = [&](std::string_view name) { flags += fmt::format("  --{}\n", name); };
  add("num-layers", m.layers);
  add("hidden-size", m.hidden);
  add("num-attention-heads", m.heads);
  if (m.ffn > 0) add("ffn-hidden-size", m.ffn);
  if (m.KeyValueWidth() < m.QueryWidth()) {
    set("group-query-attention");
    add("num-query-groups", m.kv_heads);
  }
  if (m.QueryWidth() != m.hidden) add("kv-channels", m.HeadDim());
  if (m.has.gate)  // as LLaMA
    flags += fmt::format("  --{}\n", fmt::join(kLlamaFlags, "\n  --"));
  add("seq-length", m.seq);
  add("vocab-size", m.vocab);
  add("make-vocab-size-divisible-by", m.vocab_multiple);
  if (!m.tied) set("untie-embeddings-and-output-weights");
  RunSetup ours = setup;
  ours.program = Program::kCairn;
  for (const std::string& flag : LaunchFlags(m, ours)) flags += "  " + flag + "\n";
  if (!request.rampup.empty())
    flags += fmt::format("  --rampup-batch-size {} {} {}\n", request.rampup[0], request.rampup[1],
                         request.rampup[2]);
  add("train-samples", std::llround(samples));
  if (setup.precision != Precision::kFp32) set(setup.precision == Precision::kBf16 ? "bf16" : "fp16");
  flags += request.cluster.cpu ? "  --device cpu\n" : "  --device cuda\n";
  return flags;
}

// True if the words contain the flag, as "--flag value" or "--flag=value".
bool Gives(const std::string& arguments, const std::string& flag) {
  std::istringstream words(arguments);
  for (std::string word; words >> word;)
    if (word == flag || word.starts_with(flag + "=")) return true;
  return false;
}

constexpr char kDataFlag[] =
    "  --data-path \"${DATA_PATH:?set DATA_PATH to the prefix of the indexed dataset (cairn data makes "
    "one)}\"\n";

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
  std::string flags = Flags(request, setup, options.samples);
  if (options.save_interval > 0 && !Gives(options.arguments, "--save-interval"))
    flags += fmt::format("  --save-interval {}\n", options.save_interval);
  if (!data) flags += kDataFlag;
  return fmt::format(
      R"(#!/bin/bash
# Written by cairn plan. Submit with: {prefix}sbatch {name}.sbatch
#SBATCH --job-name={name}
#SBATCH --output={name}.out
#SBATCH --open-mode=append
#SBATCH --nodes={nodes}
#SBATCH --ntasks={gpus}
#SBATCH --ntasks-per-node={node}
{gpus_per_node}#SBATCH --time={time}
#SBATCH --signal=B:USR1@{signal}
#SBATCH --requeue
set -euo pipefail

save=${{SAVE:-$PWD/{name}}} # checkpoints; the job resumes from the newest good one
flags=(
{flags}  --save "$save"
)

# Slurm sends USR1 {minutes} min before the limit; srun passes it to the ranks, which save and exit with status 0.
asked=0
step=
trap 'asked=1; [ -z "$step" ] || kill -USR1 "$step"' USR1
srun --kill-on-bad-exit=1 "${{CAIRN:-cairn}}" train "${{flags[@]}}"{arguments} &
step=$!
status=0
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do # wait returns early when the signal comes
  status=0
  wait "$step" || status=$?
done
[ "$status" = 0 ] || exit "$status"
if [ "$asked" = 1 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
)",
      fmt::arg("name", name), fmt::arg("nodes", nodes), fmt::arg("gpus", setup.gpus), fmt::arg("node", node),
      fmt::arg("gpus_per_node", request.cluster.cpu ? "" : fmt::format("#SBATCH --gpus-per-node={}\n", node)),
      fmt::arg("time", options.time), fmt::arg("signal", options.save_minutes * 60),
      fmt::arg("minutes", options.save_minutes), fmt::arg("flags", flags),
      fmt::arg("prefix", data ? "" : "DATA_PATH=/path/to/prefix "),
      fmt::arg("arguments", options.arguments.empty() ? "" : " " + options.arguments));
}

}  // namespace cairn
