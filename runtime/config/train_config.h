// Every setting of a training run: one struct, and one table that binds each field to its flag and TOML key.
//
// The names are Megatron's. `--micro-batch-size 4` on the command line and `micro-batch-size = 4` (or
// micro_batch_size) in the file given by --config mean the same; the command line wins. Tables of the file,
// such as [model], only group.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ckpt/base/dtype.h"
#include "ckpt/base/status.h"
#include "ckpt/model/topology.h"

namespace CLI {
class App;
}

namespace cairn {

struct CheckpointModel;  // checkpoint_model.h

struct TrainConfig {
  // Model; model_spec.h says what the flags come to.
  int num_layers = 12;
  int hidden_size = 768;
  int num_attention_heads = 12;
  int ffn_hidden_size = 0;          // 0: 4 * hidden_size
  int seq_length = 1024;            // tokens of a sample
  int max_position_embeddings = 0;  // 0: seq_length
  int64_t vocab_size = 0;           // true size; the padded one follows from the next and TP
  int make_vocab_size_divisible_by = 128;
  int64_t pad_vocab_size_to = 0;  // 0: make_vocab_size_divisible_by
  bool untie_embeddings_and_output_weights = false;
  bool softmax_over_padding = false;  // of the vocabulary
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double init_method_std = 0.02;
  double layernorm_epsilon = 1e-5;
  std::string normalization = "LayerNorm";
  std::string position_embedding_type = "learned_absolute";
  bool use_rotary_position_embeddings = false;  // older name of "rope"
  double rotary_base = 10000;
  double rotary_percent = 1;
  bool rotary_interleaved = false;
  double rotary_seq_len_interpolation_factor = 0;  // 0: none
  bool use_rope_scaling = false;                   // as LLaMA 3.1
  double rope_scaling_factor = 8;                  // of the former
  std::string rope_scaling;                        // JSON, as transformers has it; empty: none
  bool group_query_attention = false;
  int num_query_groups = 1;
  int kv_channels = 0;  // elements of a head; 0: hidden_size / num_attention_heads
  bool swiglu = false;
  std::string glu_activation;  // "swiglu", "geglu", "reglu", "liglu"; empty: not gated
  bool squared_relu = false;
  bool openai_gelu = false;
  bool no_bias_gelu_fusion = false;
  std::string activation;  // by transformers' name; empty: by the five above
  bool disable_bias_linear = false;
  bool add_qkv_bias = false;
  bool qk_layernorm = false;
  bool embed_layernorm = false;
  bool gpt_j_residual = false;
  bool apply_residual_connection_post_layernorm = false;
  std::shared_ptr<const CheckpointModel> of_checkpoint;  // that the model was taken from; null: the flags'

  // Parallelism. Data parallel size = ranks / (TP * PP).
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  int zero_stage = 0;
  int64_t reduce_bucket_size = 16 << 20;  // elements of one gradient collective
  // ZeRO-3, by DeepSpeed's names and with its defaults; in elements.
  int64_t stage3_prefetch_bucket_size = 50'000'000;
  int64_t stage3_param_persistence_threshold = 100'000;
  int64_t stage3_max_live_parameters = 1'000'000'000;
  int64_t stage3_max_reuse_distance = 1'000'000'000;
  bool offload_optimizer = false;  // to host memory
  bool offload_param = false;
  bool sequence_parallel = false;
  int num_layers_per_virtual_pipeline_stage = 0;    // 0: one run of layers per stage
  int num_virtual_stages_per_pipeline_rank = 0;     // the same, by the number of runs; 0: not given
  std::string pipeline_schedule = "1f1b";           // or "gpipe"
  std::vector<int64_t> layers_per_stage;            // empty: even
  std::string pp_partition_method;                  // "", "uniform" or "type:transformer|embedding"
  bool scatter_gather_tensors_in_pipeline = false;  // on a CPU too
  bool no_scatter_gather_tensors_in_pipeline = false;
  double distributed_timeout_seconds = 600;
  std::string device = "cpu";
  int threads = 0;  // per rank; 0: the cores of this node divided by its ranks

  // Precision.
  bool fp16 = false;
  bool bf16 = false;
  double loss_scale = 0;                     // 0: dynamic
  double initial_loss_scale = 4294967296.0;  // 2^32, as Megatron
  double min_loss_scale = 1.0;
  int loss_scale_window = 1000;  // steps without overflow before the scale doubles
  int hysteresis = 2;            // overflows tolerated before the scale halves

  // Batches and duration. Exactly one of train_iters and train_samples is above 0.
  int micro_batch_size = 1;
  int64_t global_batch_size = 0;  // samples; 0: micro_batch_size * DP
  std::vector<int64_t>
      rampup_batch_size;  // start, increment, samples over which it grows to global_batch_size
  int64_t train_iters = 0;
  int64_t train_samples = 0;
  int64_t train_tokens = 0;                 // ends there, too
  int64_t gradient_accumulation_steps = 0;  // micro-batches of a rank; 0: global_batch_size says it
  double exit_duration_in_mins = 0;         // 0: never
  int64_t max_bad_iterations = 20;          // in a row; 0: any number
  int64_t exit_interval = 0;                // stop after an iteration that this divides; 0: never
  std::string kill_switch_path;

  // Optimizer.
  std::string optimizer = "adam";  // or "sgd"
  double lr = 1e-4;
  double min_lr = 0;
  std::string lr_decay_style = "linear";
  int64_t lr_decay_iters = 0;  // 0: until the end of training
  int64_t lr_decay_samples = 0;
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  int64_t lr_decay_tokens = 0;
  int64_t lr_warmup_tokens = 0;
  double lr_warmup_init = 0;               // the rate it rises from
  std::string lr_warmup_style = "linear";  // or "log", of the step
  double lr_warmup_fraction = 0;           // of the decay length; excludes the two above
  double weight_decay = 0.01;
  double clip_grad = 1.0;  // 0: no clipping
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  bool no_fused_adam = false;
  std::string exp_avg_dtype = "fp32";  // or "bf16"
  std::string exp_avg_sq_dtype = "fp32";

  // Activation checkpointing.
  std::string recompute_granularity;    // "", "full" or "selective"
  bool checkpoint_activations = false;  // older name of "full"
  std::string recompute_method;         // "": as "uniform"; "block": of each stage the first layers only
  int recompute_num_layers = 1;         // uniform: layers recomputed at once; block: layers recomputed at all
  bool partition_activations = false;   // what is kept is cut across TP
  bool checkpoint_in_cpu = false;       // what is kept lies in host memory
  bool split_transformers = false;      // a layer is recomputed in two parts
  bool scattered_embeddings = false;
  bool memory_centric_tiled_linear = false;
  int tile_factor = 1;

  // Data.
  std::vector<std::string> data_path;  // one prefix, or weight, prefix, weight, prefix...
  std::string split = "969,30,1";
  // Instead of the two: "NAME: WEIGHT START:END PREFIX, WEIGHT START:END PREFIX", or the file that has them.
  std::vector<std::string> train_weighted_split_paths;
  std::vector<std::string> valid_weighted_split_paths;
  std::vector<std::string> test_weighted_split_paths;
  std::string train_weighted_split_paths_path;
  std::string valid_weighted_split_paths_path;
  std::string test_weighted_split_paths_path;
  std::string vocab_file;
  std::string merge_file;
  std::string tokenizer_type;
  std::string tokenizer_model;
  std::string tokenizer_name_or_path;
  bool reset_progress = false;
  bool norm_target_loss = false;
  bool eod_mask_loss = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  int64_t eod = -1;  // no flag: the token that ends a document, if one of these needs it
  bool mock_data = false;
  int64_t seed = 1234;
  int64_t eval_interval = 0;  // 0: no evaluation
  int64_t eval_iters = 10;    // 0: no evaluation either

  // Checkpoints.
  std::string save;
  std::string load;
  bool finetune = false;            // of `load` the weights alone
  bool no_load_optim = false;       // of `load` all but optimizer and schedule
  bool no_load_rng = false;         // dropout's streams start again from the seed and the iteration
  bool load_unhealthy = false;      // resume from the newest step, healthy or not
  bool start_anew = false;          // if the steps of `save` are gone
  bool allow_other_data = false;    // than the checkpoint's
  std::string save_interval = "0";  // steps, or "auto"
  double mtbf = 5000;               // hours between failures of one node
  std::string save_local;           // "{rank}" stands for the rank; empty: no local level
  int64_t save_local_interval = 0;  // 0: only saves that are due for `save` too
  std::string redundancy;           // "", "xor:K" or "rs:K,M"
  int64_t keep_last_local = 2;
  std::string save_mode = "lazy";     // or "copy"
  std::string save_overlap = "wait";  // "skip", "double"
  std::string save_codec = "none";    // "zstd", "auto"
  int save_codec_threads = 2;
  bool split_master = false;
  int64_t keep_last = 0;    // 0: all
  int64_t keep_every = 0;   // keep steps that this divides; 0: none
  int64_t keep_tokens = 0;  // keep one step for each so many tokens; 0: none
  int64_t keep_epochs = 0;  // keep one step for each so many passes over the data; 0: none
  int64_t keep_best = 0;    // keep so many with the lowest validation loss; 0: none
  std::string save_now_file;

  // Logs.
  int64_t log_interval = 1;
  bool log_num_zeros_in_grad = false;
  std::string log_json;
  std::string tensorboard_dir;
  int64_t tensorboard_log_interval = 1;
  int64_t tensorboard_queue_size = 1000;
  bool log_timers_to_tensorboard = false;
  bool log_throughput = false;
  double peak_tflops = 0;  // of a rank's device, for MFU; 0: of the GPU where its name is known
  int timing_log_level = 0;
  std::string timing_log_option = "minmax";  // or "max", "all"
  bool no_log_learning_rate_to_tensorboard = false;
  bool no_log_loss_scale_to_tensorboard = false;
  int64_t log_memory_interval = 0;  // steps; 0: the first log line alone
  bool log_memory_to_tensorboard = false;
  std::string prometheus_textfile;

  // Instead of a training.
  bool skip_train = false;  // evaluate `load`, and nothing else

  // How the flags are read.
  bool deepspeed = false;  // as Megatron-DeepSpeed did
  std::string deepspeed_config;
  std::vector<std::string> notes;  // no flag: notes on the flags, logged once

  bool resets_by_document() const { return reset_position_ids || reset_attention_mask; }
  // A linear layer's weight and gradient are used in so many tiles. Below ZeRO 2 a rank has all of both.
  int tiles_of_linear() const { return memory_centric_tiled_linear && zero_stage >= 2 ? tile_factor : 1; }
  bool recompute() const { return checkpoint_activations || recompute_granularity == "full"; }
  int ffn() const { return ffn_hidden_size > 0 ? ffn_hidden_size : 4 * hidden_size; }
  int positions() const { return max_position_embeddings > 0 ? max_position_embeddings : seq_length; }
  int head_dim() const { return kv_channels > 0 ? kv_channels : hidden_size / num_attention_heads; }
  Dtype dtype() const { return bf16 ? Dtype::kBF16 : fp16 ? Dtype::kF16 : Dtype::kF32; }
  // Errors: InvalidArgument. Below 0: auto.
  Result<int64_t> SaveSteps() const;
  bool by_samples() const { return train_samples > 0; }
};

// One row of the table: a flag, its help, and the field it fills.
struct Flag {
  std::string_view group;
  std::string_view name;  // with dashes, without the leading two
  std::string_view help;
  std::variant<bool TrainConfig::*, int TrainConfig::*, int64_t TrainConfig::*, double TrainConfig::*,
               std::string TrainConfig::*, std::vector<int64_t> TrainConfig::*,
               std::vector<std::string> TrainConfig::*>
      field;
  std::string_view value = {};       // name of its value in the help, choices as "a|b"; empty: its type
  std::optional<double> least = {};  // smaller values are refused
};
std::span<const Flag> TrainFlags();
const Flag* FindTrainFlag(std::string_view name);  // null if there is none
// The flag as a command line would have it: "--num-layers 12", "--swiglu".
std::string AsGiven(const Flag& flag, const TrainConfig& config);

// Declares --config, --version and all flags to CLI11, which writes into `config` and `config_file`: for
// parsing, and for what is made from the tree of flags (manual pages, shell completion).
void DeclareTrainFlags(CLI::App& app, TrainConfig& config, std::string& config_file);

// A parsed command line: train, or only print `text` (help, version) and stop.
struct ParsedCommandLine {
  TrainConfig config;
  std::vector<std::string_view> given;  // names of flags, of the command line or the file
  std::string text;                     // not empty: print this and exit with status 0
};

// Reads argv, the file of --config and DeepSpeed's JSON. Errors: InvalidArgument and NotSupported naming the
// flag, or the file and line or key; NotFound.
Result<ParsedCommandLine> ParseCommandLine(int argc, const char* const* argv);

// Fills `config` from TOML text, but leaves alone the flags whose names are in `given`. `origin` is for
// messages; the names of the flags that the text has go to `filled`.
Status ApplyToml(std::string_view text, const std::string& origin, const std::vector<std::string_view>& given,
                 TrainConfig& config, std::vector<std::string_view>* filled = nullptr);

// Everything that can be checked without data: sizes, ranges, and whether `world` ranks fit. Fills in
// global_batch_size if it is 0. Returns the topology. Errors: InvalidArgument that says which numbers
// do not fit.
Result<Topology> Validate(TrainConfig& config, int world);

}  // namespace cairn
