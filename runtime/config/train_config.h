// Every setting of a training run: one struct, and one table that binds each field to its flag and TOML key.
//
// The names are Megatron's. `--micro-batch-size 4` on the command line and `micro-batch-size = 4` (or
// micro_batch_size) in the file given by --config mean the same; the command line wins. Tables of the file,
// such as [model], only group.
#pragma once

#include <cstdint>
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

struct TrainConfig {
  // Model.
  int num_layers = 12;
  int hidden_size = 768;
  int num_attention_heads = 12;
  int ffn_hidden_size = 0;          // 0: 4 * hidden_size
  int seq_length = 1024;            // tokens of a sample
  int max_position_embeddings = 0;  // 0: seq_length
  int64_t vocab_size = 0;           // true size; the padded one follows from the next and TP
  int make_vocab_size_divisible_by = 128;
  bool untie_embeddings_and_output_weights = false;
  bool softmax_over_padding = false;  // of the vocabulary
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double init_method_std = 0.02;
  double layernorm_epsilon = 1e-5;

  // Parallelism. Data parallel size = ranks / (TP * PP).
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  int zero_stage = 0;
  int64_t reduce_bucket_size = 16 << 20;  // elements of one gradient collective
  double distributed_timeout_seconds = 600;
  std::string device = "cpu";
  int threads = 0;  // per rank; 0: the cores of this node divided by its ranks

  // Precision.
  bool fp16 = false;
  bool bf16 = false;
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
  double exit_duration_in_mins = 0;  // 0: never
  int64_t max_bad_iterations = 20;   // in a row; 0: any number
  int64_t exit_interval = 0;         // stop after an iteration that this divides; 0: never

  // Optimizer.
  double lr = 1e-4;
  double min_lr = 0;
  std::string lr_decay_style = "linear";
  int64_t lr_decay_iters = 0;  // 0: until the end of training
  int64_t lr_decay_samples = 0;
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  double lr_warmup_fraction = 0;  // of the decay length; excludes the two above
  double weight_decay = 0.01;
  double clip_grad = 1.0;  // 0: no clipping
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;

  // Activation checkpointing.
  std::string recompute_granularity;    // "" or "full"
  bool checkpoint_activations = false;  // older name of the same

  // Data.
  std::vector<std::string> data_path;
  std::string split = "969,30,1";
  bool mock_data = false;
  int64_t seed = 1234;
  int64_t eval_interval = 0;  // 0: no evaluation
  int64_t eval_iters = 10;    // 0: no evaluation either

  // Checkpoints.
  std::string save;
  std::string load;
  bool finetune = false;            // of `load` the weights alone
  bool load_unhealthy = false;      // resume from the newest step, healthy or not
  bool start_anew = false;          // where the steps of `save` are gone
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
  std::string save_now_file;

  // Logs.
  int64_t log_interval = 1;
  bool log_num_zeros_in_grad = false;
  std::string log_json;
  std::string tensorboard_dir;
  int64_t tensorboard_log_interval = 1;

  bool recompute() const { return checkpoint_activations || recompute_granularity == "full"; }
  int ffn() const { return ffn_hidden_size > 0 ? ffn_hidden_size : 4 * hidden_size; }
  int positions() const { return max_position_embeddings > 0 ? max_position_embeddings : seq_length; }
  int head_dim() const { return hidden_size / num_attention_heads; }
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
  std::string_view value = {};  // name of its value in the help, choices as "a|b"; empty: its type
};
std::span<const Flag> TrainFlags();

// Declares --config, --version and all flags to CLI11, which writes into `config` and `config_file`: for
// parsing, and for what is made from the tree of flags (manual pages, shell completion).
void DeclareTrainFlags(CLI::App& app, TrainConfig& config, std::string& config_file);

// What a command line asks for: to train, or only to print `text` (help, version) and stop.
struct ParsedCommandLine {
  TrainConfig config;
  std::string text;  // not empty: print this and exit with status 0
};

// Reads argv and the file of --config. Errors: InvalidArgument naming the flag, or the file and line.
Result<ParsedCommandLine> ParseCommandLine(int argc, const char* const* argv);

// Fills `config` from TOML text, but leaves alone the flags whose names are in `given`. `origin` is for
// messages.
Status ApplyToml(std::string_view text, const std::string& origin, const std::vector<std::string_view>& given,
                 TrainConfig& config);

// Everything that can be checked without data: sizes, ranges, and whether `world` ranks fit. Fills what 0
// leaves to others (global_batch_size). Returns the topology. Errors: InvalidArgument that says which numbers
// do not fit.
Result<Topology> Validate(TrainConfig& config, int world);

}  // namespace cairn
