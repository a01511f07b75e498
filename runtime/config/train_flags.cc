// The one table of flags. Help of the command, TOML keys and parsing all follow from it.
#include "runtime/config/train_config.h"

namespace cairn {
namespace {

using C = TrainConfig;

constexpr std::string_view kModel = "Model";
constexpr std::string_view kParallel = "Parallelism";
constexpr std::string_view kPrecision = "Precision";
constexpr std::string_view kBatches = "Batches and duration";
constexpr std::string_view kOptimizer = "Optimizer";
constexpr std::string_view kMemory = "Memory";
constexpr std::string_view kData = "Data";
constexpr std::string_view kCheckpoints = "Checkpoints";
constexpr std::string_view kLogs = "Logs";

const Flag kFlags[] = {
    {kModel, "num-layers", "Transformer layers", &C::num_layers},
    {kModel, "hidden-size", "Width of the model", &C::hidden_size},
    {kModel, "num-attention-heads", "Attention heads", &C::num_attention_heads},
    {kModel, "ffn-hidden-size", "Width inside the MLP; 0 is 4 * hidden-size", &C::ffn_hidden_size},
    {kModel, "seq-length", "Tokens of a sample", &C::seq_length},
    {kModel, "max-position-embeddings", "Learned positions; 0 is seq-length", &C::max_position_embeddings},
    {kModel, "vocab-size", "Vocabulary, unpadded", &C::vocab_size},
    {kModel, "make-vocab-size-divisible-by", "Pad the vocabulary in memory to a multiple of this times TP",
     &C::make_vocab_size_divisible_by},
    {kModel, "untie-embeddings-and-output-weights", "Give the output layer a weight of its own",
     &C::untie_embeddings_and_output_weights},
    {kModel, "softmax-over-padding",
     "Include the vocabulary's padding in the softmax, with logits of 0, to compare losses with Megatron's; "
     "otherwise the loss does not depend on the padding",
     &C::softmax_over_padding},
    {kModel, "hidden-dropout", "Dropout probability of the residual branches and the embedding",
     &C::hidden_dropout},
    {kModel, "attention-dropout", "Dropout probability of the attention weights", &C::attention_dropout},
    {kModel, "init-method-std", "Standard deviation of the initial weights", &C::init_method_std},
    {kModel, "layernorm-epsilon", "Added to the variance in layer norms", &C::layernorm_epsilon},

    {kParallel, "tensor-model-parallel-size", "TP: ranks that each layer is cut across",
     &C::tensor_model_parallel_size},
    {kParallel, "pipeline-model-parallel-size", "PP: stages of layers", &C::pipeline_model_parallel_size},
    {kParallel, "zero-stage", "0: replicated optimizer; 1: optimizer states cut across data parallel ranks",
     &C::zero_stage},
    {kParallel, "reduce-bucket-size", "Elements of one gradient collective", &C::reduce_bucket_size},
    {kParallel, "distributed-timeout-seconds",
     "Deadline of each collective; all ranks stop if one exceeds it", &C::distributed_timeout_seconds},
    {kParallel, "device", "cpu or cuda", &C::device, "cpu|cuda"},
    {kParallel, "threads", "CPU threads of each rank; 0 divides the node's cores among its ranks",
     &C::threads},

    {kPrecision, "bf16", "bfloat16 weights and activations, fp32 master weights", &C::bf16},
    {kPrecision, "fp16", "half-precision weights and activations, fp32 master weights, dynamic loss scale",
     &C::fp16},
    {kPrecision, "initial-loss-scale", "First loss scale under fp16", &C::initial_loss_scale},
    {kPrecision, "min-loss-scale", "Lowest loss scale under fp16", &C::min_loss_scale},
    {kPrecision, "loss-scale-window", "Steps without overflow before the loss scale doubles",
     &C::loss_scale_window},
    {kPrecision, "hysteresis", "Overflows tolerated before the loss scale halves", &C::hysteresis},

    {kBatches, "micro-batch-size", "Samples of one forward pass", &C::micro_batch_size},
    {kBatches, "global-batch-size", "Samples of one step over all ranks; 0 is micro-batch-size * DP",
     &C::global_batch_size},
    {kBatches, "rampup-batch-size", "START INCREMENT SAMPLES: grow the batch from START over so many samples",
     &C::rampup_batch_size},
    {kBatches, "train-iters", "Steps to train", &C::train_iters},
    {kBatches, "train-samples", "Samples to train, instead of train-iters", &C::train_samples},
    {kBatches, "exit-duration-in-mins", "Save and exit after so many minutes", &C::exit_duration_in_mins},
    {kBatches, "max-bad-iterations",
     "Stop with status 1 after so many bad iterations in a row: the loss is not finite, or an update is "
     "skipped for a reason other than the loss scale; 0 never stops",
     &C::max_bad_iterations},
    {kBatches, "exit-interval", "Save and exit after an iteration that this divides", &C::exit_interval},

    {kOptimizer, "lr", "Highest learning rate", &C::lr},
    {kOptimizer, "min-lr", "Lowest learning rate of the decay", &C::min_lr},
    {kOptimizer, "lr-decay-style", "constant, linear or cosine", &C::lr_decay_style,
     "constant|linear|cosine"},
    {kOptimizer, "lr-decay-iters", "Steps of the decay; 0 is train-iters", &C::lr_decay_iters},
    {kOptimizer, "lr-decay-samples", "Samples of the decay; 0 is train-samples", &C::lr_decay_samples},
    {kOptimizer, "lr-warmup-iters", "Steps over which the rate rises from 0", &C::lr_warmup_iters},
    {kOptimizer, "lr-warmup-samples", "Samples over which the rate rises from 0", &C::lr_warmup_samples},
    {kOptimizer, "lr-warmup-fraction", "Share of the decay over which the rate rises from 0",
     &C::lr_warmup_fraction},
    {kOptimizer, "weight-decay", "Decoupled weight decay of matrices", &C::weight_decay},
    {kOptimizer, "clip-grad", "Largest global gradient norm; 0 does not clip", &C::clip_grad},
    {kOptimizer, "adam-beta1", "Decay of the first moment", &C::adam_beta1},
    {kOptimizer, "adam-beta2", "Decay of the second moment", &C::adam_beta2},
    {kOptimizer, "adam-eps", "Added to the denominator of Adam", &C::adam_eps},

    {kMemory, "recompute-granularity",
     "full: keep only each layer's input and recompute the rest in backward", &C::recompute_granularity,
     "full"},
    {kMemory, "checkpoint-activations", "The same as --recompute-granularity full",
     &C::checkpoint_activations},

    {kData, "data-path", "Indexed dataset: PREFIX.bin and PREFIX.idx", &C::data_path, "PREFIX"},
    {kData, "split", "Shares of training, validation and test", &C::split, "SHARES"},
    {kData, "mock-data", "Train on a synthetic sequence made from the seed", &C::mock_data},
    {kData, "seed", "Seed of weights, sample order and dropout", &C::seed},
    {kData, "eval-interval", "Steps between evaluations; 0 never evaluates", &C::eval_interval},
    {kData, "eval-iters", "Batches of an evaluation; 0 never evaluates", &C::eval_iters},

    {kCheckpoints, "save", "Run directory to write checkpoints to", &C::save, "DIR"},
    {kCheckpoints, "load",
     "Run directory or step to resume from if --save has no checkpoint yet; may be the same as --save, and "
     "then the first start begins at iteration 0",
     &C::load, "DIR"},
    {kCheckpoints, "finetune",
     "Take only the weights of --load, in any float type; optimizer, learning rate and data start again",
     &C::finetune},
    {kCheckpoints, "load-unhealthy",
     "Resume from the newest checkpoint even if it, or the iteration after it, was bad; otherwise from the "
     "newest healthy one",
     &C::load_unhealthy},
    {kCheckpoints, "start-anew",
     "Start at iteration 0 although the checkpoints that --save once had are gone", &C::start_anew},
    {kCheckpoints, "save-interval",
     "Steps between checkpoints; 0 saves at the end only; auto measures two saves, then takes the interval "
     "that loses the least time to saves and failures (Young and Daly); a resumed training keeps it",
     &C::save_interval, "N|auto"},
    {kCheckpoints, "mtbf", "Hours between failures of one node, for --save-interval auto", &C::mtbf},
    {kCheckpoints, "save-local",
     "Node-local directory (NVMe, /dev/shm) to write each checkpoint to first; {rank} stands for the rank",
     &C::save_local, "DIR"},
    {kCheckpoints, "save-local-interval",
     "Steps between local checkpoints; those at --save-interval are then copied to --save",
     &C::save_local_interval},
    {kCheckpoints, "redundancy",
     "xor:K or rs:K,M: local checkpoints survive the loss of any 1, or any M, ranks of each group of K",
     &C::redundancy, "SCHEME"},
    {kCheckpoints, "keep-last-local", "Healthy local checkpoints to keep, newest first", &C::keep_last_local},
    {kCheckpoints, "save-mode",
     "lazy: copy the snapshot during the next forward and backward; copy: copy it at once", &C::save_mode,
     "lazy|copy"},
    {kCheckpoints, "save-overlap",
     "If a save is due before the last one is durable: wait, skip it, or double the snapshot's memory",
     &C::save_overlap, "wait|skip|double"},
    {kCheckpoints, "save-codec",
     "none; zstd: compress exponents and the like, which HDF5 opens with its zstd filter; auto: compress "
     "only while saves wait for the disk",
     &C::save_codec, "none|zstd|auto"},
    {kCheckpoints, "split-master",
     "Store only the part of an fp32 master that its bf16 weight does not hold, and no fp16 weight that its "
     "master holds (12 bytes a parameter instead of 14)",
     &C::split_master},
    {kCheckpoints, "save-codec-threads", "Threads of each rank that compress", &C::save_codec_threads},
    {kCheckpoints, "keep-last",
     "Healthy checkpoints to keep, newest first; 0 keeps all. The newest two always stay, because only later "
     "iterations show whether the newest is good",
     &C::keep_last},
    {kCheckpoints, "keep-every", "Also keep steps that this divides", &C::keep_every},
    {kCheckpoints, "keep-tokens", "Also keep one step for every so many tokens", &C::keep_tokens},
    {kCheckpoints, "save-now-file", "When this file appears, save and delete it", &C::save_now_file, "FILE"},

    {kLogs, "log-interval", "Steps between log lines", &C::log_interval},
    {kLogs, "log-num-zeros-in-grad", "Count the zeros of the gradient", &C::log_num_zeros_in_grad},
    {kLogs, "log-json", "Append one JSON object per step to this file", &C::log_json, "FILE"},
    {kLogs, "tensorboard-dir", "Directory for TensorBoard event files, with Megatron-LM's names",
     &C::tensorboard_dir, "DIR"},
    {kLogs, "tensorboard-log-interval", "Steps between points in TensorBoard", &C::tensorboard_log_interval},
};

}  // namespace

std::span<const Flag> TrainFlags() { return kFlags; }

}  // namespace cairn
