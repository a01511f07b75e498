// Every setting of a training run: one struct, and one table that binds each field to its flag and TOML key.
// Both are made of train_flags.def; model_spec.h turns the flags of the model into a ModelSpec.
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
#define GROUP(name)
#define FLAG(type, field, initial, ...) type field = initial;
#include "runtime/config/train_flags.def"
#undef FLAG
#undef GROUP
  // No flags: the model of the checkpoint that it was taken from (null: the flags'), the token that ends a
  // document if one of the flags needs it, and notes on the flags, logged once.
  std::shared_ptr<const CheckpointModel> of_checkpoint;
  int64_t eod = -1;
  std::vector<std::string> notes;

  bool resets_by_document() const { return reset_position_ids || reset_attention_mask; }
  // A linear layer's weight and gradient are used in this many tiles. Below ZeRO 2 a rank has all of both.
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
  std::string name;  // with dashes, without the leading two
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
std::string FlagText(const Flag& flag, const TrainConfig& config);

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

// Fills `config` from TOML text, except the flags whose names are in `given`. `origin` is for messages; the
// names of the flags in the text are added to `filled`.
Status ApplyToml(std::string_view text, const std::string& origin, const std::vector<std::string_view>& given,
                 TrainConfig& config, std::vector<std::string_view>* filled = nullptr);

// Everything that can be checked without data: sizes, ranges, and whether `world` ranks fit. Fills in
// global_batch_size if it is 0. Returns the topology. Errors: InvalidArgument that says which numbers
// do not fit.
Result<Topology> Validate(TrainConfig& config, int world);

}  // namespace cairn
