// Checks of a configuration before any data is read or any rank waits for another.
#include <array>
#include <charconv>

#include "ckpt/step/parity_file.h"
#include "runtime/config/train_config.h"

namespace cairn {
namespace {

struct Bound {
  std::string_view flag;
  double value;
  double least;
};

Status CheckBounds(const TrainConfig& c) {
  const std::array bounds{
      Bound{"num-layers", double(c.num_layers), 1},
      Bound{"hidden-size", double(c.hidden_size), 1},
      Bound{"num-attention-heads", double(c.num_attention_heads), 1},
      Bound{"ffn-hidden-size", double(c.ffn_hidden_size), 0},
      Bound{"seq-length", double(c.seq_length), 1},
      Bound{"max-position-embeddings", double(c.max_position_embeddings), 0},
      Bound{"vocab-size", double(c.vocab_size), 1},
      Bound{"make-vocab-size-divisible-by", double(c.make_vocab_size_divisible_by), 1},
      Bound{"tensor-model-parallel-size", double(c.tensor_model_parallel_size), 1},
      Bound{"pipeline-model-parallel-size", double(c.pipeline_model_parallel_size), 1},
      Bound{"reduce-bucket-size", double(c.reduce_bucket_size), 1},
      Bound{"threads", double(c.threads), 0},
      Bound{"micro-batch-size", double(c.micro_batch_size), 1},
      Bound{"global-batch-size", double(c.global_batch_size), 0},
      Bound{"train-iters", double(c.train_iters), 0},
      Bound{"train-samples", double(c.train_samples), 0},
      Bound{"loss-scale-window", double(c.loss_scale_window), 1},
      Bound{"hysteresis", double(c.hysteresis), 1},
      Bound{"log-interval", double(c.log_interval), 1},
      Bound{"tensorboard-log-interval", double(c.tensorboard_log_interval), 1},
      Bound{"eval-interval", double(c.eval_interval), 0},
      Bound{"eval-iters", double(c.eval_iters), 0},
      Bound{"save-local-interval", double(c.save_local_interval), 0},
      Bound{"keep-last-local", double(c.keep_last_local), 1},
      Bound{"save-codec-threads", double(c.save_codec_threads), 1},
      Bound{"max-bad-iterations", double(c.max_bad_iterations), 0},
      Bound{"exit-interval", double(c.exit_interval), 0},
      Bound{"exit-duration-in-mins", c.exit_duration_in_mins, 0},
      Bound{"hidden-dropout", c.hidden_dropout, 0},
      Bound{"attention-dropout", c.attention_dropout, 0},
      Bound{"clip-grad", c.clip_grad, 0},
  };
  for (const Bound& bound : bounds)
    if (!(bound.value >= bound.least))
      return InvalidArgument("--{} is {}; it must be at least {}", bound.flag, bound.value, bound.least);
  if (c.hidden_dropout >= 1 || c.attention_dropout >= 1)
    return InvalidArgument("a dropout probability must be below 1");
  return OkStatus();
}

Status CheckChoices(const TrainConfig& c) {
  CAIRN_RETURN_IF_ERROR(c.SaveSteps().status());
  if (!(c.mtbf > 0)) return InvalidArgument("--mtbf is {}; it must be above 0", c.mtbf);
  if (c.finetune && c.load.empty()) return InvalidArgument("--finetune needs --load");
  if (c.bf16 && c.fp16) return InvalidArgument("--bf16 and --fp16 exclude each other");
  if (c.device != "cpu" && c.device != "cuda")
    return InvalidArgument("--device is '{}'; it must be cpu or cuda", c.device);
  if (c.lr_decay_style != "constant" && c.lr_decay_style != "linear" && c.lr_decay_style != "cosine")
    return InvalidArgument("--lr-decay-style is '{}'; it must be constant, linear or cosine",
                           c.lr_decay_style);
  if (c.save_mode != "lazy" && c.save_mode != "copy")
    return InvalidArgument("--save-mode is '{}'; known are lazy, copy", c.save_mode);
  if (c.save_overlap != "wait" && c.save_overlap != "skip" && c.save_overlap != "double")
    return InvalidArgument("--save-overlap is '{}'; known are wait, skip, double", c.save_overlap);
  if (c.save.empty() && !c.save_local.empty())
    return InvalidArgument("--save-local needs --save: the last checkpoint ends up there");
  if (c.save_local.empty() && (!c.redundancy.empty() || c.save_local_interval > 0))
    return InvalidArgument("--redundancy and --save-local-interval need --save-local");
  CAIRN_RETURN_IF_ERROR(ParseRedundancy(c.redundancy).status());
  if (c.save_codec != "none" && c.save_codec != "zstd" && c.save_codec != "auto")
    return InvalidArgument("--save-codec is '{}'; known are none, zstd, auto", c.save_codec);
  if (!c.recompute_granularity.empty() && c.recompute_granularity != "full")
    return InvalidArgument("--recompute-granularity is '{}'; only 'full' is known", c.recompute_granularity);
  if (c.zero_stage < 0 || c.zero_stage > 1)
    return InvalidArgument("--zero-stage is {}; it must be 0 or 1", c.zero_stage);
  if ((c.train_iters > 0) == (c.train_samples > 0))
    return InvalidArgument("give one of --train-iters and --train-samples");
  if (c.mock_data != c.data_path.empty()) return InvalidArgument("give one of --data-path and --mock-data");
  if (c.lr_warmup_fraction > 0 && (c.lr_warmup_iters > 0 || c.lr_warmup_samples > 0))
    return InvalidArgument("--lr-warmup-fraction excludes --lr-warmup-iters and --lr-warmup-samples");
  if (c.lr_warmup_fraction < 0 || c.lr_warmup_fraction > 1)
    return InvalidArgument("--lr-warmup-fraction is {}; it must lie between 0 and 1", c.lr_warmup_fraction);
  return OkStatus();
}

Status CheckModel(const TrainConfig& c) {
  if (c.hidden_size % c.num_attention_heads != 0)
    return InvalidArgument("--hidden-size {} is not a multiple of --num-attention-heads {}", c.hidden_size,
                           c.num_attention_heads);
  if (c.num_attention_heads % c.tensor_model_parallel_size != 0)
    return InvalidArgument(
        "{} attention heads are not a multiple of TP={}; choose another --tensor-model-parallel-size",
        c.num_attention_heads, c.tensor_model_parallel_size);
  if (c.ffn() % c.tensor_model_parallel_size != 0)
    return InvalidArgument("--ffn-hidden-size {} is not a multiple of TP={}", c.ffn(),
                           c.tensor_model_parallel_size);
  if (c.num_layers < c.pipeline_model_parallel_size)
    return InvalidArgument(
        "{} layers are fewer than PP={} stages; choose a smaller --pipeline-model-parallel-size",
        c.num_layers, c.pipeline_model_parallel_size);
  if (c.seq_length > c.positions())
    return InvalidArgument("--seq-length {} is more than --max-position-embeddings {}", c.seq_length,
                           c.positions());
  return OkStatus();
}

Status CheckRampup(const TrainConfig& c, int64_t unit) {
  if (c.rampup_batch_size.empty()) return OkStatus();
  if (c.rampup_batch_size.size() != 3)
    return InvalidArgument("--rampup-batch-size takes START INCREMENT SAMPLES, not {} numbers",
                           c.rampup_batch_size.size());
  const int64_t start = c.rampup_batch_size[0];
  const int64_t increment = c.rampup_batch_size[1];
  if (start < 1 || increment < 1 || c.rampup_batch_size[2] < 0 || start > c.global_batch_size)
    return InvalidArgument("--rampup-batch-size {} {} {} does not lead to --global-batch-size {}", start,
                           increment, c.rampup_batch_size[2], c.global_batch_size);
  if ((c.global_batch_size - start) % increment != 0)
    return InvalidArgument("--rampup-batch-size: {} in steps of {} never reaches --global-batch-size {}",
                           start, increment, c.global_batch_size);
  if (start % unit != 0 || increment % unit != 0)
    return InvalidArgument("--rampup-batch-size {} {}: both must be multiples of micro-batch-size * DP = {}",
                           start, increment, unit);
  return OkStatus();
}

}  // namespace

Result<int64_t> TrainConfig::SaveSteps() const {
  if (save_interval == "auto") return -1;
  int64_t steps = -1;
  const char* end = save_interval.data() + save_interval.size();
  const auto [stop, error] = std::from_chars(save_interval.data(), end, steps);
  if (error != std::errc() || stop != end || steps < 0)
    return InvalidArgument("--save-interval is '{}'; it must be a number of steps, or auto", save_interval);
  return steps;
}

Result<Topology> Validate(TrainConfig& c, int world) {
  CAIRN_RETURN_IF_ERROR(CheckBounds(c));
  CAIRN_RETURN_IF_ERROR(CheckChoices(c));
  CAIRN_RETURN_IF_ERROR(CheckModel(c));
  const int64_t model_ranks = int64_t{c.tensor_model_parallel_size} * c.pipeline_model_parallel_size;
  if (world % model_ranks != 0)
    return InvalidArgument("{} ranks are not a multiple of TP*PP = {}*{}; start a multiple of {} ranks",
                           world, c.tensor_model_parallel_size, c.pipeline_model_parallel_size, model_ranks);
  const Topology topology{.tp = c.tensor_model_parallel_size,
                          .pp = c.pipeline_model_parallel_size,
                          .dp = static_cast<int>(world / model_ranks),
                          .zero = c.zero_stage};
  CAIRN_RETURN_IF_ERROR(Validate(topology));
  const int64_t unit = int64_t{c.micro_batch_size} * topology.dp;
  if (c.global_batch_size == 0) c.global_batch_size = unit;
  if (c.global_batch_size % unit != 0)
    return InvalidArgument("--global-batch-size {} is not a multiple of --micro-batch-size {} * DP={}",
                           c.global_batch_size, c.micro_batch_size, topology.dp);
  CAIRN_RETURN_IF_ERROR(CheckRampup(c, unit));
  return topology;
}

}  // namespace cairn
