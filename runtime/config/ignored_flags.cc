#include "runtime/config/ignored_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ranges>

namespace cairn {
namespace {

constexpr std::string_view kAny = "*";
constexpr std::string_view kMany = "*...";

constexpr std::string_view kMapped = "a dataset is always read in place";
constexpr std::string_view kLoaders = "each rank reads its own samples";
constexpr std::string_view kKernels = "the kernels are chosen by the device and the shapes";
constexpr std::string_view kFp32Sums = "gradients are always summed in fp32";
constexpr std::string_view kOverlap = "communication and computation overlap by themselves";
constexpr std::string_view kBuffers = "gradients and weights always lie in flat buffers";
constexpr std::string_view kRanks = "the variables of mpirun, srun or torchrun determine the rank";
constexpr std::string_view kOwnFormat = "checkpoints are Cairn's, and convert reads and writes the others";
constexpr std::string_view kSchedule = "the learning rate always follows the command line";
constexpr std::string_view kRecomputes = "it chose the library that recomputes";
constexpr std::string_view kOneProcessGroup = "it divided work that cairn train does not divide";
constexpr std::string_view kDense = "there are no experts";
constexpr std::string_view kNotLogged = "it changes no training and is not recorded";
constexpr std::string_view kWandb = "nothing is sent to Weights & Biases; --tensorboard-dir has the points";
constexpr std::string_view kMemoryPool = "libtorch's allocator needs no help for it";
constexpr std::string_view kGathers = "weights are gathered a layer at a time, or all at once";
constexpr std::string_view kPinned = "offloaded state lies in locked memory if the device is a GPU";
constexpr std::string_view kNeutral = "this value changes nothing";

constexpr IgnoredFlag kIgnored[] = {
    // Data.
    {"data-impl", "mmap|infer|lazy|cached", kMapped},
    {"mmap-warmup", "", kMapped},
    {"no-mmap-bin-files", "", kMapped},
    {"num-workers", kAny, kLoaders},
    {"valid-num-workers", kAny, kLoaders},
    {"dataloader-type", "single", "each sample comes once, in the dataset's order"},
    {"data-cache-path", kAny, "the order of the samples is computed at each start and stored nowhere"},
    {"no-create-attention-mask-in-dataloader", "", kKernels},
    {"sample-rate", "1|1.0", kNeutral},
    {"repeated-dataloader", "", "a dataset that ends is read again"},

    // Ranks and communication.
    {"distributed-backend", "nccl|gloo|mpi", "the backend follows from --device"},
    {"local-rank", kAny, kRanks},
    {"lazy-mpu-init", kAny, kRanks},
    {"DDP-impl", "local|torch|FSDP", kBuffers},
    {"use-contiguous-buffers-in-ddp", "", kBuffers},
    {"no-contiguous-buffers-in-local-ddp", "", kBuffers},
    {"zero-contigious-gradients", "", kBuffers},
    {"allgather-bucket-size", kAny, kGathers},
    {"zero-allgather-bucket-size", kAny, kGathers},
    {"zero-reduce-scatter", "", "ZeRO's gradients are always reduced to the ranks that own them"},
    {"accumulate-allreduce-grads-in-fp32", "", kFp32Sums},
    {"overlap-grad-reduce", "", kOverlap},
    {"overlap-param-gather", "", kOverlap},
    {"overlap-p2p-communication", "", kOverlap},
    {"no-overlap-p2p-communication", "", kOverlap},
    {"no-async-tensor-model-parallel-allreduce", "", kOverlap},
    {"use-ring-exchange-p2p", "", kOverlap},
    {"tp-comm-overlap", "", kOverlap},
    {"no-pipeline-parallel", "", "--pipeline-model-parallel-size 1 has no pipeline"},
    {"sync-tp-duplicated-parameters", "", "parameters that all TP ranks hold have the same gradient on each"},
    {"context-parallel-size", "1", kOneProcessGroup},
    {"ds-sequence-parallel-size", "1", kOneProcessGroup},
    {"expert-model-parallel-size", "1", kDense},
    {"expert-tensor-parallel-size", "1", kDense},
    {"moe-expert-parallel-size", "1", kDense},
    {"num-experts", "1", kDense},
    {"topk", kAny, kDense},
    {"mlp-type", "standard", kDense},
    {"moe-loss-coeff", kAny, kDense},
    {"moe-train-capacity-factor", kAny, kDense},
    {"moe-eval-capacity-factor", kAny, kDense},
    {"moe-min-capacity", kAny, kDense},
    {"disable-moe-token-dropping", "", kDense},
    {"create-moe-param-group", "", kDense},

    // Kernels and memory.
    {"abort-on-unmet-fused-kernel-constraints", "", kKernels},
    {"no-masked-softmax-fusion", "", kKernels},
    {"bias-swiglu-fusion", "", kKernels},
    {"no-bias-swiglu-fusion", "", kKernels},
    {"no-bias-dropout-fusion", "", kKernels},
    {"no-rope-fusion", "", kKernels},
    {"no-persist-layer-norm", "", kKernels},
    {"no-gradient-accumulation-fusion", "", kKernels},
    {"disable-mem-efficient-ln", "", kKernels},
    {"cross-entropy-loss-fusion", "", kKernels},
    {"use-flash-attn", "", kKernels},
    {"use-flash-attn-v1", "", kKernels},
    {"use-flash-attn-v2", "", kKernels},
    {"use-flash-attn-triton", "", kKernels},
    {"use-flash-attn-builder", "", kKernels},
    {"attention-backend", kAny, kKernels},
    {"transformer-impl", kAny, kKernels},
    {"use-mcore-models", "", kKernels},
    {"use-legacy-models", "", kKernels},
    {"no-position-embedding", "", "--position-embedding-type determines it"},
    {"no-query-key-layer-scaling", "", "scores are not scaled by the layer's number, which cancelled out"},
    {"apply-query-key-layer-scaling", "", "scores are not scaled by the layer's number, which cancelled out"},
    {"attention-softmax-in-fp32", "", "the softmax is always computed in fp32"},
    {"fp16-lm-cross-entropy", "", "the loss is always computed in fp32"},
    {"calculate-per-token-loss", "", "all samples have as many tokens"},
    {"use-cpu-initialization", "", "weights start the same on each topology and device"},
    {"deepspeed-activation-checkpointing", "", kRecomputes},
    {"contigious-checkpointing", "", kRecomputes},
    {"synchronize-each-layer", "", "recomputation needs no synchronization"},
    {"profile-backward", "", kNotLogged},
    {"empty-unused-memory-level", kAny, kMemoryPool},
    {"manual-gc", "", "there is no garbage collector"},
    {"manual-gc-interval", kAny, "there is no garbage collector"},
    {"pin-memory", "", kPinned},
    {"use-pin-memory", "", kPinned},
    {"cpu-torch-adam", "", "the optimizer in host memory is libtorch's"},
    {"ds-fused-adam", "", "Adam is fused unless --no-fused-adam is given"},

    // Checkpoints and the schedule.
    {"universal-checkpoint", "", "each checkpoint can be resumed on any topology"},
    {"ckpt-format", kAny, kOwnFormat},
    {"dist-ckpt-format", kAny, kOwnFormat},
    {"use-dist-ckpt", "", kOwnFormat},
    {"auto-detect-ckpt-format", "", kOwnFormat},
    {"dist-ckpt-strictness", kAny, kOwnFormat},
    {"ckpt-fully-parallel-save", "", "all ranks always write their own part"},
    {"ckpt-fully-parallel-load", "", "all ranks always read their own part"},
    {"async-save", "", "saves always run in parallel with the training"},
    {"override-lr-scheduler", "", kSchedule},
    {"override-opt-param-scheduler", "", kSchedule},
    {"weight-decay-incr-style", "constant", kNeutral},
    {"no-check-for-nan-in-loss-and-grad", "", "--max-bad-iterations determines when to stop"},
    {"check-for-nan-in-loss-and-grad", "", "--max-bad-iterations determines when to stop"},
    {"exit-signal-handler", "", "SIGTERM always saves first"},

    // Logs.
    {"log-level", kAny, kNotLogged},
    {"log-level-replica", kAny, kNotLogged},
    {"logging-level", kAny, kNotLogged},
    {"log-path", kAny, "the arguments are in the log"},
    {"log-progress", "", kNotLogged},
    {"log-straggler", "", kNotLogged},
    {"log-params-norm", "", kNotLogged},
    {"log-batch-size-to-tensorboard", "", "TensorBoard always has the batch size"},
    {"log-validation-ppl-to-tensorboard", "", "TensorBoard always has the perplexity of evaluations"},
    {"log-optimizer-states-to-tensorboard", "", kNotLogged},
    {"log-world-size-to-tensorboard", "", kNotLogged},
    {"no-barrier-with-level-1-timing", "", kNotLogged},
    {"codecarbon-dir", kAny, kNotLogged},
    {"profile", "", kNotLogged},
    {"profile-step-start", kAny, kNotLogged},
    {"profile-step-end", kAny, kNotLogged},
    {"profile-ranks", kMany, kNotLogged},
    {"wandb-project", kAny, kWandb},
    {"wandb-exp-name", kAny, kWandb},
    {"wandb-save-dir", kAny, kWandb},
};

// The value that would have had an effect, else "".
std::string ValueWithEffect(const IgnoredFlag& flag, const std::vector<std::string>& given) {
  if (flag.values.empty() || flag.values.starts_with('*')) return "";
  for (const std::string& value : given) {
    const auto is_value = [&](auto choice) {
      return std::string_view(choice.begin(), choice.end()) == value;
    };
    if (!std::ranges::any_of(std::views::split(flag.values, '|'), is_value)) return value;
  }
  return "";
}

}  // namespace

std::span<const IgnoredFlag> IgnoredFlags() { return kIgnored; }

Result<std::string> NoteFor(const IgnoredFlag& flag, const std::vector<std::string>& values) {
  if (const std::string value = ValueWithEffect(flag, values); !value.empty())
    return InvalidArgument("--{} {} is not supported; only {} is", flag.name, value, flag.values);
  return fmt::format("--{} has no effect here: {}", flag.name, flag.reason);
}

void DeclareIgnoredFlags(CLI::App& app) {
  for (const IgnoredFlag& flag : kIgnored) {
    const std::string name = fmt::format("--{}", flag.name);
    if (app.get_option_no_throw(name) != nullptr) continue;  // it has an effect now
    CLI::Option* option = flag.values.empty() ? app.add_flag(name) : app.add_option(name);
    if (flag.values == kMany)
      option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
    else
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    option->group("");  // not in the help
  }
}

Result<std::vector<std::string>> NotesOnIgnoredFlags(const CLI::App& app) {
  std::vector<std::string> notes;
  for (const IgnoredFlag& flag : kIgnored) {
    const CLI::Option* option = app.get_option(fmt::format("--{}", flag.name));
    if (option->count() == 0 || !option->get_group().empty()) continue;
    CAIRN_ASSIGN_OR_RETURN(notes.emplace_back(), NoteFor(flag, option->results()));
  }
  return notes;
}

}  // namespace cairn
