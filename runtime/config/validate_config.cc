// Checks of a configuration before any data is read or any rank waits for another.
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "ckpt/base/parse_number.h"
#include "ckpt/base/split_text.h"
#include "ckpt/step/parity_file.h"
#include "runtime/config/deepspeed_config.h"
#include "runtime/config/model_spec.h"
#include "runtime/config/named_tokenizer.h"
#include "runtime/config/schedule_lengths.h"
#include "runtime/config/stage_layers.h"

namespace cairn {
namespace {

Status CheckBounds(const TrainConfig& c) {
  for (const Flag& flag : TrainFlags()) {
    const auto check = [&](auto field) {
      if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(c.*field)>>) {
        if (flag.least && !(static_cast<double>(c.*field) >= *flag.least))
          return InvalidArgument("--{} is {}; it must be at least {}", flag.name, c.*field, *flag.least);
      }
      return OkStatus();
    };
    CAIRN_RETURN_IF_ERROR(std::visit(check, flag.field));
  }
  if (c.hidden_dropout >= 1 || c.attention_dropout >= 1)
    return InvalidArgument("a dropout probability must be below 1");
  return OkStatus();
}

// The table has a flag's choices as "a|b"; a word in capitals stands for any value. The default is a
// choice, too.
Status CheckListedChoices(const TrainConfig& c) {
  const TrainConfig defaults;
  for (const Flag& flag : TrainFlags()) {
    const auto* field = std::get_if<std::string TrainConfig::*>(&flag.field);
    if (!field || flag.value.find('|') == std::string_view::npos || std::isupper(flag.value.front()))
      continue;
    const std::string& value = c.**field;
    const std::vector<std::string_view> known = SplitText(flag.value, '|');
    if (value != defaults.**field && std::ranges::find(known, value) == known.end())
      return InvalidArgument("--{} is '{}'; it must be one of {}", flag.name, value, fmt::join(known, ", "));
  }
  return OkStatus();
}

Status CheckData(const TrainConfig& c) {
  const auto given = [](const std::vector<std::string>& groups, const std::string& file) {
    return !groups.empty() || !file.empty();
  };
  const bool groups = given(c.train_weighted_split_paths, c.train_weighted_split_paths_path);
  if (c.mock_data + !c.data_path.empty() + groups != 1)
    return InvalidArgument("give one of --data-path, --train-weighted-split-paths and --mock-data");
  const bool evaluates = given(c.valid_weighted_split_paths, c.valid_weighted_split_paths_path) ||
                         given(c.test_weighted_split_paths, c.test_weighted_split_paths_path);
  if (evaluates && !groups)
    return InvalidArgument(
        "--valid-weighted-split-paths and --test-weighted-split-paths need --train-weighted-split-paths; "
        "--data-path has its own --split");
  return OkStatus();
}

Status CheckChoices(const TrainConfig& c) {
  CAIRN_RETURN_IF_ERROR(CheckListedChoices(c));
  CAIRN_RETURN_IF_ERROR(c.SaveSteps().status());
  if (!(c.mtbf > 0)) return InvalidArgument("--mtbf is {}; it must be above 0", c.mtbf);
  if (!c.recompute() && (c.partition_activations || c.checkpoint_in_cpu || c.split_transformers))
    return InvalidArgument(
        "--partition-activations, --checkpoint-in-cpu and --split-transformers are for recomputed layers: "
        "give --checkpoint-activations, too");
  if (c.split_transformers && c.recompute_method != "block" && c.recompute_num_layers > 1 &&
      c.recompute_num_layers % 2 != 0)
    return InvalidArgument(
        "--split-transformers counts halves of layers, and --recompute-num-layers {} would end within a "
        "layer; give 1 or an even number",
        c.recompute_num_layers);
  if (c.finetune && c.load.empty()) return InvalidArgument("--finetune needs --load");
  if (c.no_load_optim && c.load.empty()) return InvalidArgument("--no-load-optim needs --load");
  if (c.bf16 && c.fp16) return InvalidArgument("--bf16 and --fp16 exclude each other");
  if (c.scatter_gather_tensors_in_pipeline && c.no_scatter_gather_tensors_in_pipeline)
    return InvalidArgument(
        "--scatter-gather-tensors-in-pipeline and --no-scatter-gather-tensors-in-pipeline exclude each "
        "other");
  if (c.save.empty() && !c.save_local.empty())
    return InvalidArgument("--save-local needs --save: the last checkpoint ends up there");
  if (c.save_local.empty() && (!c.redundancy.empty() || c.save_local_interval > 0))
    return InvalidArgument("--redundancy and --save-local-interval need --save-local");
  CAIRN_RETURN_IF_ERROR(ParseRedundancy(c.redundancy).status());
  if (c.zero_stage > 1 && c.pipeline_model_parallel_size > 1)
    return InvalidArgument(
        "--zero-stage {} and --pipeline-model-parallel-size {}: a pipeline needs ZeRO 0 or 1, as in "
        "DeepSpeed",
        c.zero_stage, c.pipeline_model_parallel_size);
  if (c.offload_param && c.zero_stage != 3) return InvalidArgument("--offload-param needs --zero-stage 3");
  if (c.offload_param && !c.offload_optimizer)
    return InvalidArgument(
        "--offload-param needs --offload-optimizer: the host updates the parameters that it keeps");
  if (c.zero_stage > 3) return InvalidArgument("--zero-stage is {}; it must be 0 to 3", c.zero_stage);
  if (c.train_tokens < 0 || c.lr_decay_tokens < 0 || c.lr_warmup_tokens < 0)
    return InvalidArgument("--train-tokens, --lr-decay-tokens and --lr-warmup-tokens must be at least 0");
  if (c.skip_train && (c.load.empty() || c.eval_iters == 0))
    return InvalidArgument("--skip-train needs --load and --eval-iters: it evaluates the weights of --load");
  if (!c.skip_train && (c.train_iters > 0) == (c.train_samples > 0))
    return InvalidArgument("give one of --train-iters and --train-samples");
  CAIRN_RETURN_IF_ERROR(CheckData(c));
  if (c.lr_warmup_fraction > 0 && (c.lr_warmup_iters > 0 || c.lr_warmup_samples > 0))
    return InvalidArgument("--lr-warmup-fraction excludes --lr-warmup-iters and --lr-warmup-samples");
  if (c.lr_warmup_fraction < 0 || c.lr_warmup_fraction > 1)
    return InvalidArgument("--lr-warmup-fraction is {}; it must lie between 0 and 1", c.lr_warmup_fraction);
  return OkStatus();
}

Status CheckRotary(const TrainConfig& c) {
  const double elements = c.head_dim() * c.rotary_percent;
  if (!(c.rotary_base > 1)) return InvalidArgument("--rotary-base is {}; it must be above 1", c.rotary_base);
  if (!(c.rotary_percent <= 1) || elements < 2 || static_cast<int64_t>(elements) % 2 != 0)
    return InvalidArgument("--rotary-percent {} of heads of {} elements is {}; an even number must rotate",
                           c.rotary_percent, c.head_dim(), elements);
  return OkStatus();
}

Status CheckHeads(const TrainConfig& c) {
  if (c.kv_channels == 0 && c.hidden_size % c.num_attention_heads != 0)
    return InvalidArgument("--hidden-size {} is not a multiple of --num-attention-heads {}", c.hidden_size,
                           c.num_attention_heads);
  if (c.num_attention_heads % c.tensor_model_parallel_size != 0)
    return InvalidArgument(
        "{} attention heads are not a multiple of TP={}; choose another --tensor-model-parallel-size",
        c.num_attention_heads, c.tensor_model_parallel_size);
  if (!c.group_query_attention) return OkStatus();
  if (c.num_attention_heads % c.num_query_groups != 0)
    return InvalidArgument("--num-attention-heads {} is not a multiple of --num-query-groups {}",
                           c.num_attention_heads, c.num_query_groups);
  if (c.num_query_groups % c.tensor_model_parallel_size != 0)
    return InvalidArgument(
        "{} heads of keys and values (--num-query-groups) are not a multiple of TP={}; choose another "
        "--tensor-model-parallel-size",
        c.num_query_groups, c.tensor_model_parallel_size);
  return OkStatus();
}

Status CheckModel(const TrainConfig& c) {
  CAIRN_RETURN_IF_ERROR(CheckHeads(c));
  if (c.ffn() % c.tensor_model_parallel_size != 0)
    return InvalidArgument("--ffn-hidden-size {} is not a multiple of TP={}", c.ffn(),
                           c.tensor_model_parallel_size);
  if (c.num_layers < c.pipeline_model_parallel_size)
    return InvalidArgument(
        "{} layers are fewer than PP={} stages; choose a smaller --pipeline-model-parallel-size",
        c.num_layers, c.pipeline_model_parallel_size);
  CAIRN_RETURN_IF_ERROR(SpecOfFlags(c).status());
  const ModelSpec spec = SpecOf(c);
  const bool stretches = spec.rotary.scaling.kind == RopeScaling::Kind::kDynamic;
  if (c.seq_length > c.positions() && !stretches)
    return InvalidArgument("--seq-length {} is more than --max-position-embeddings {}", c.seq_length,
                           c.positions());
  const int64_t rows = int64_t{c.micro_batch_size} * c.seq_length;
  if (c.sequence_parallel && c.partition_activations)
    return InvalidArgument(
        "--sequence-parallel and --partition-activations exclude each other: activations are cut already");
  if ((c.scattered_embeddings || c.sequence_parallel) && rows % c.tensor_model_parallel_size != 0)
    return InvalidArgument(
        "--sequence-parallel and --scattered-embeddings: {} rows of a micro-batch (--micro-batch-size * "
        "--seq-length) are not a multiple of TP={}",
        rows, c.tensor_model_parallel_size);
  const int64_t padded = c.pad_vocab_size_to;
  if (padded > 0 && (padded < c.vocab_size || padded % c.tensor_model_parallel_size != 0))
    return InvalidArgument(
        "--pad-vocab-size-to is {}; it must be at least --vocab-size {} and a multiple of TP={}", padded,
        c.vocab_size, c.tensor_model_parallel_size);
  return spec.position == Position::kRotary ? CheckRotary(c) : OkStatus();
}

// Chunks of layers on each pipeline stage. Errors: InvalidArgument when the layers do not divide into them.
Result<int> VirtualStages(const TrainConfig& c) {
  const int per_chunk = c.num_layers_per_virtual_pipeline_stage, pp = c.pipeline_model_parallel_size;
  const int given = c.num_virtual_stages_per_pipeline_rank;
  if (per_chunk > 0 && given > 0)
    return InvalidArgument(
        "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank exclude each "
        "other");
  if (per_chunk == 0 && given <= 1) return 1;
  const std::string flag = per_chunk > 0
                               ? fmt::format("--num-layers-per-virtual-pipeline-stage {}", per_chunk)
                               : fmt::format("--num-virtual-stages-per-pipeline-rank {}", given);
  if (pp == 1)
    return InvalidArgument(
        "{} interleaves the stages of a pipeline, but PP is 1; set --pipeline-model-parallel-size", flag);
  if (per_chunk > 0 && (c.num_layers % pp != 0 || c.num_layers / pp % per_chunk != 0))
    return InvalidArgument("{} layers do not divide into PP={} stages of runs of {}", c.num_layers, pp, flag);
  const int chunks = per_chunk > 0 ? c.num_layers / pp / per_chunk : given;
  if (chunks * pp > c.num_layers)
    return InvalidArgument("{} layers are fewer than the {} runs of PP={} stages with {}", c.num_layers,
                           chunks * pp, pp, flag);
  if ((per_chunk > 0 && !c.layers_per_stage.empty()) || !c.pp_partition_method.empty())
    return InvalidArgument(
        "{} already cuts the layers; leave --pp-partition-method out, and give --layers-per-stage with "
        "--num-virtual-stages-per-pipeline-rank, for each run",
        flag);
  if (chunks > 1 && c.pipeline_schedule == "gpipe")
    return InvalidArgument("--pipeline-schedule gpipe has one run of layers per stage; leave out {}", flag);
  return chunks;
}

// The interleaved schedule takes the micro-batches of each step in groups of PP.
Status CheckGroups(const TrainConfig& c, const Topology& topology) {
  if (topology.virtual_stages == 1) return OkStatus();
  const int64_t group = int64_t{c.micro_batch_size} * topology.dp * topology.pp;
  std::vector<int64_t> batches{c.global_batch_size};
  if (!c.rampup_batch_size.empty())
    batches.insert(batches.end(), {c.rampup_batch_size[0], c.rampup_batch_size[1]});
  for (const int64_t batch : batches)
    if (batch % group != 0)
      return InvalidArgument(
          "interleaved stages (--num-layers-per-virtual-pipeline-stage) need batches that are multiples of "
          "micro-batch-size * DP * PP = {}; {} is not",
          group, batch);
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

// `unit`: samples of one micro-batch over all ranks.
Status FillGlobalBatch(int64_t unit, TrainConfig& c) {
  const int64_t steps = c.gradient_accumulation_steps;
  if (c.global_batch_size == 0) c.global_batch_size = unit * std::max<int64_t>(1, steps);
  if (steps > 0 && c.global_batch_size != unit * steps)
    return InvalidArgument(
        "--global-batch-size {} is not --gradient-accumulation-steps {} times micro-batch-size * DP = {}",
        c.global_batch_size, steps, unit);
  return OkStatus();
}

// There must be a step to train, and something left to decay after the warm-up (Megatron asserts it).
Status CheckLengths(const TrainConfig& c) {
  if (c.skip_train) return OkStatus();
  const int64_t first_batch = c.rampup_batch_size.empty() ? c.global_batch_size : c.rampup_batch_size[0];
  if (c.by_samples() && c.train_samples < first_batch)
    return InvalidArgument(
        "--train-samples {} is less than the first batch of {} samples; nothing would be trained",
        c.train_samples, first_batch);
  const ScheduleLengths lengths = ScheduleLengthsOf(
      c, c.by_samples() ? double(c.train_samples) : double(c.train_iters) * double(c.global_batch_size));
  if (c.lr_decay_style != "constant" && lengths.warmup >= lengths.decay)
    return InvalidArgument(
        "the warm-up of {} samples (--lr-warmup-iters, -samples or -fraction) must be shorter than the decay "
        "of {} samples (--lr-decay-iters or -samples, else the whole training), as in Megatron; shorten it, "
        "or give --lr-decay-style constant",
        lengths.warmup, lengths.decay);
  return OkStatus();
}

}  // namespace

Result<int64_t> TrainConfig::SaveSteps() const {
  if (save_interval == "auto") return -1;
  const auto steps = ParseNumber<int64_t>(save_interval, 0);
  if (!steps)
    return InvalidArgument("--save-interval is '{}'; it must be a number of steps, or auto", save_interval);
  return *steps;
}

Result<Topology> Validate(TrainConfig& c, int world) {
  FillAutoSizes(c);
  CAIRN_RETURN_IF_ERROR(CheckVocabulary(c));
  CAIRN_RETURN_IF_ERROR(CheckBounds(c));
  CAIRN_RETURN_IF_ERROR(CheckChoices(c));
  CAIRN_RETURN_IF_ERROR(CheckModel(c));
  const int64_t model_ranks = int64_t{c.tensor_model_parallel_size} * c.pipeline_model_parallel_size;
  if (world % model_ranks != 0)
    return InvalidArgument("{} ranks are not a multiple of TP*PP = {}*{}; start a multiple of {} ranks",
                           world, c.tensor_model_parallel_size, c.pipeline_model_parallel_size, model_ranks);
  CAIRN_ASSIGN_OR_RETURN(const int virtual_stages, VirtualStages(c));
  CAIRN_ASSIGN_OR_RETURN(std::vector<int> layers_per_stage, StageLayersOf(c));
  const Topology topology{.tp = c.tensor_model_parallel_size,
                          .pp = c.pipeline_model_parallel_size,
                          .dp = static_cast<int>(world / model_ranks),
                          .zero = c.zero_stage,
                          .virtual_stages = virtual_stages,
                          .layers_per_stage = std::move(layers_per_stage)};
  CAIRN_RETURN_IF_ERROR(Validate(topology));
  const int64_t unit = int64_t{c.micro_batch_size} * topology.dp;
  CAIRN_RETURN_IF_ERROR(FillGlobalBatch(unit, c));
  if (c.global_batch_size % unit != 0)
    return InvalidArgument("--global-batch-size {} is not a multiple of --micro-batch-size {} * DP={}",
                           c.global_batch_size, c.micro_batch_size, topology.dp);
  CAIRN_RETURN_IF_ERROR(CheckRampup(c, unit));
  CAIRN_RETURN_IF_ERROR(CheckGroups(c, topology));
  CAIRN_RETURN_IF_ERROR(CheckLengths(c));
  return topology;
}

}  // namespace cairn
