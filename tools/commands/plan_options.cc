// Flags come first. The keys of --config then set the options that were not typed; keys that only cairn train
// has are skipped: one file serves both. A model's config.json fills in the sizes that are still missing.
// Contradictions, and plans that cairn train cannot run, are refused last, when everything is known.

#include "tools/commands/plan_options.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ckpt/base/toml_fields.h"
#include "ckpt/families/hugging_face_config.h"
#include "ckpt/io/strict_json.h"
#include "runtime/config/train_config.h"
#include "tools/cli/choices.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/output.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kUsualSeq = 2048;  // without --seq-length

template <typename Value>
CLI::Option* List(CLI::App& plan, const std::string& names, std::vector<Value>& values,
                  const std::string& help, CLI::Range range = CLI::Range(1, 1'000'000)) {
  return plan.add_option(names, values, help)->delimiter(',')->check(range);
}

void DeclareModel(CLI::App& plan, PlanFlags& o) {
  const auto size = [&](const std::string& name, int64_t& value, const std::string& help) {
    plan.add_option(name, value, help)->check(CLI::Range(int64_t{1}, int64_t{100'000'000}));
  };
  plan.add_option("--model", o.model, "Hugging Face config.json, or the directory that holds it")
      ->type_name("PATH");
  size("--num-layers", o.shape.layers, "transformer layers");
  size("--hidden-size", o.shape.hidden, "width of the model");
  size("--num-attention-heads", o.shape.heads, "attention heads");
  size("--num-query-groups", o.shape.kv_heads, "key and value heads; default: as many as heads");
  size("--ffn-hidden-size", o.shape.ffn, "width inside the MLP; default: 4 * hidden-size");
  size("--seq-length", o.shape.seq, "tokens of a sample; default: 2048");
  size("--vocab-size", o.shape.vocab, "vocabulary, unpadded");
  size("--make-vocab-size-divisible-by", o.shape.vocab_multiple,
       "pad the vocabulary to a multiple of this times TP");
  plan.add_flag("--swiglu", o.swiglu, "gated MLP, no biases; cairn train also rotates positions");
  plan.add_flag("--untie-embeddings-and-output-weights", o.untied, "the output layer has its own weight");
}

void DeclareRun(CLI::App& plan, PlanFlags& o) {
  std::vector<std::string> names;
  for (const Cluster& cluster : BuiltInClusters()) names.push_back(cluster.name);
  plan.add_option("--cluster", o.cluster, fmt::format("{}, or a TOML file", fmt::join(names, ", ")))
      ->type_name("NAME|FILE")
      ->capture_default_str();
  plan.add_option("--nodes", o.request.nodes, "nodes at most; plans may use fewer")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  plan.add_option("--global-batch-size", o.request.setup.global_batch, "samples of one step")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000'000}));
  plan.add_option("--rampup-batch-size", o.request.rampup,
                  "START INCREMENT SAMPLES: grow the batch from START over this many samples")
      ->expected(3);
  const auto length = [&](const std::string& name, int64_t& value, const std::string& help) {
    plan.add_option(name, value, help)->check(CLI::Range(int64_t{1}, int64_t{1} << 60));
  };
  length("--train-samples", o.train_samples, "length of the training, for days and GPU-hours");
  length("--train-tokens", o.train_tokens, "length of the training in tokens");
  length("--train-iters", o.train_iters, "length of the training in steps of the full batch");
  plan.add_flag("--bf16", o.bf16, "bfloat16 (the default)");
  plan.add_flag("--fp16", o.fp16, "half precision");
  plan.add_flag("--fp32", o.fp32, "single precision");
  plan.add_flag("--fp8", o.fp8, "products of layers in FP8, the rest in bfloat16");
  plan.add_flag("--sequence-parallel", o.request.setup.sequence_parallel,
                "cut norms, residuals and dropout by TP along the sequence");
  plan.add_flag("--use-flash-attn", o.request.setup.flash_attention, "attention that stores no scores");
  plan.add_flag("--offload-optimizer", o.request.setup.offload_optimizer,
                "optimizer states and step on the CPU");
}

void DeclareSearch(CLI::App& plan, PlanFlags& o) {
  PlanRequest& r = o.request;
  List(plan, "--tensor-model-parallel-size,--tp", r.tp, "sizes to try; default: powers of 2");
  List(plan, "--pipeline-model-parallel-size,--pp", r.pp, "sizes to try; default: all");
  List(plan, "--data-parallel-size,--dp", r.dp, "sizes to try; default: all");
  List(plan, "--expert-model-parallel-size,--ep", r.ep,
       "sizes to try; default: those that divide the experts");
  List(plan, "--expert-tensor-parallel-size,--etp", r.etp, "sizes to try; default: 1 and TP");
  List(plan, "--micro-batch-size,--mbs", r.micro_batches, "sizes to try; default: 1, 2, 4, 8, 16");
  List(plan, "--zero-stage,--zero", r.zero, "stages to try; default: 0, 1, 2, 3", CLI::Range(0, 3));
  List(plan, "--virtual-stages", r.virtual_stages, "numbers to try; default: 1, 2, 4");
  plan.add_option("--recompute-granularity,--recompute", r.recompute, "kinds to try; default: all three")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Recomputation>(std::begin(kRecomputations), std::end(kRecomputations))))
      ->option_text("full|selective|none");
  AddFramework(plan, r.setup.program)
      ->description(
          "program whose memory is counted, and whose flags describe the cut; default: megatron-deepspeed, "
          "but megatron-lm for experts and latent attention");
  plan.add_flag("--for-cairn", o.for_cairn,
                "only plans that cairn train runs, with its memory (implied by --sbatch)");
  plan.add_flag("--embeddings-as-layers", r.embeddings_as_layers,
                "only stages in which embedding and output layer each count as a layer");
  plan.add_flag("--even-stages", r.even_stages,
                "only stages of the same number of layers; without it the first and the last may hold fewer, "
                "as the --framework allows");
  plan.add_flag("!--no-fused-softmax", r.fused_softmax, "drop the rule (heads / tp) * mbs % 4 == 0");
  plan.add_option("--require", r.require,
                  "a condition that plans must meet, such as \"dp % 4 == 0 && mem_gb < 70\"")
      ->type_name("CONDITION")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  plan.add_option("--memory-share", r.memory_share, "share of the GPU's memory that a plan may need")
      ->check(CLI::Range(0.1, 1.1))
      ->capture_default_str();
  plan.add_option("--calibrate", o.calibrate,
                  "CSV of measured runs, see cairn plan predict --help; default: the built-in ones")
      ->type_name("FILE");
}

void DeclareOutput(CLI::App& plan, PlanFlags& o) {
  plan.add_option("--config", o.config,
                  "TOML file with these names as keys, or the one of cairn train; flags win")
      ->type_name("FILE");
  plan.add_option("--top", o.top, "plans to print")->check(CLI::Range(1, 10'000))->capture_default_str();
  plan.add_option("--for-hidden-near", o.hidden_near,
                  "propose shapes of the same size with about this hidden size")
      ->check(CLI::Range(64, 1'000'000));
  plan.add_option("--save-gbps", o.node_gbps, "GB/s that a node writes, to predict the time of a save")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  plan.add_option(
          "--mtbf", o.mtbf_hours,
          "hours between failures of one node, to compute the interval between saves (Young and Daly)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  plan.add_option("--keep-last", o.keep_last,
                  "steps that the training keeps, to sum its checkpoints (default: all)")
      ->check(CLI::PositiveNumber)
      ->option_text("K");
  AddSize(plan, "--quota", o.quota_bytes, "compare the checkpoints that are kept with this quota, like 50TB");
  CLI::Option* sbatch =
      plan.add_option("--sbatch", o.sbatch,
                      "directory for job scripts of the plans, named after their configuration")
          ->type_name("DIR");
  plan.add_option(
          "--array", o.array,
          "in the scripts: N tasks of an array, one after another, instead of a job that queues itself again")
      ->needs(sbatch)
      ->check(CLI::Range(1, 1000))
      ->option_text("N");
  plan.add_option("--sbatch-args", o.sbatch_args, "flags to append to cairn train in the scripts")
      ->type_name("FLAGS");
  plan.add_option("--time-limit", o.time_limit, "Slurm's limit of one job")
      ->type_name("TIME")
      ->capture_default_str();
  plan.add_flag("--dry-run", o.dry_run, "name the scripts without writing them");
  plan.add_flag("--json", o.json, "print facts as JSON");
}

std::string TextOf(const toml::node& node) {
  if (const auto text = node.value<std::string>()) return *text;
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto number = node.value<double>()) return fmt::format("{}", *number);
  return "";
}

// Gives the option the key's value, as on the command line.
Status Give(CLI::Option& option, const toml::node& node, const std::string& where) {
  if (const toml::array* array = node.as_array())
    for (const toml::node& each : *array) option.add_result(TextOf(each));
  else
    option.add_result(TextOf(node));
  try {
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    return InvalidArgument("{}: {}", where, error.what());
  }
  return OkStatus();
}

// Keys that only cairn train knows are skipped: one file serves both.
Status ApplyField(CLI::App& plan, const TomlField& key) {
  if (CLI::Option* option = plan.get_option_no_throw("--" + key.name)) {
    if (option->count() > 0) return OkStatus();
    return Give(*option, key.value, fmt::format("{}: {}", key.where, key.name));
  }
  if (std::ranges::find(TrainFlags(), key.name, &Flag::name) != TrainFlags().end()) return OkStatus();
  std::vector<std::string> known;
  for (const Flag& flag : TrainFlags()) known.emplace_back(flag.name);
  for (const CLI::Option* option : plan.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  return UnknownTomlKey(key, known, "neither cairn plan nor cairn train has this key");
}

Status ApplyConfig(CLI::App& plan, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(FileSystem::Posix(), path, kMaxConfigBytes));
  return TakeGroupedToml(text, path, [&](const TomlField& key) { return ApplyField(plan, key); });
}

// Flags win over the model's file.
Status ApplyModel(PlanFlags& options) {
  const bool directory = std::filesystem::is_directory(options.model);
  const std::string path = directory ? JoinPath(options.model, "config.json") : options.model;
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json config,
                         ReadJsonObject(FileSystem::Posix(), path, kMaxConfigBytes));
  Result<ModelShape> read = ShapeOfConfig(config);
  if (!read.ok()) return read.status().WithContext(path);
  ModelShape shape = *read;
  for (const auto field : {&ModelShape::layers, &ModelShape::hidden, &ModelShape::heads,
                           &ModelShape::kv_heads, &ModelShape::ffn, &ModelShape::seq, &ModelShape::vocab})
    if (options.shape.*field > 0) shape.*field = options.shape.*field;
  shape.vocab_multiple = options.shape.vocab_multiple;
  if (options.shape.seq == 0) shape.seq = std::min(read->seq, kUsualSeq);
  if (options.shape.seq == 0 && shape.seq < read->seq)
    PrintProblem(fmt::format(
        "note: planned for sequences of {} tokens; --seq-length sets another length, up to the model's {}",
        shape.seq, read->seq));
  if (shape.positions > 0) shape.positions = std::max(shape.positions, shape.seq);
  if (config.value("num_nextn_predict_layers", nlohmann::json(0)) != 0)
    PrintProblem(
        "note: layers of multi-token prediction are left out: the plan is for the model without them");
  for (const char* part : {"vision_config", "audio_config"})
    if (config.contains(part))
      PrintProblem(fmt::format("note: {} is left out: the plan is only for the decoder", part));
  options.shape = shape;
  return OkStatus();
}

}  // namespace

CLI::Option* AddFramework(CLI::App& app, Program& program) {
  return AddChoice<Program>(
      app, "--framework", program, "program whose memory is counted, and whose flags describe the cut",
      {{"megatron-deepspeed", Program::kMegatronDeepSpeed}, {"megatron-lm", Program::kMegatronLm}});
}

std::string_view ShortNameOf(Program program) {
  if (program == Program::kCairn) return "cairn train";
  return program == Program::kMegatronLm ? "Megatron-LM" : "Megatron-DeepSpeed";
}

std::string NameOf(Program program) {
  const std::string name(ShortNameOf(program));
  if (program == Program::kCairn) return name;
  return name + (program == Program::kMegatronLm ? " (18 bytes a parameter, 6 + 12/dp with ZeRO 1)"
                                                 : " (20 bytes a parameter)");
}

void DeclarePlanOptions(CLI::App& plan, PlanFlags& options) {
  CLI::OptionDefaults& defaults = *plan.option_defaults();
  const std::string usual = defaults.get_group();
  defaults.group("Model");
  DeclareModel(plan, options);
  defaults.group("Cluster and batch");
  DeclareRun(plan, options);
  defaults.group("Search");
  DeclareSearch(plan, options);
  defaults.group("Output");
  DeclareOutput(plan, options);
  defaults.group("Checkpoints");
  DeclareCheckpointOptions(plan, options.checkpoints);
  defaults.group(usual);  // of subcommands
}

Status CompletePlanOptions(CLI::App& plan, PlanFlags& options) {
  if (!options.config.empty()) CAIRN_RETURN_IF_ERROR(ApplyConfig(plan, options.config));
  if (!options.model.empty()) CAIRN_RETURN_IF_ERROR(ApplyModel(options));
  if (options.shape.seq == 0) options.shape.seq = kUsualSeq;
  if (options.untied) options.shape.tied = false;
  if (options.bf16 + options.fp16 + options.fp32 + options.fp8 > 1)
    return InvalidArgument("--bf16, --fp16, --fp32 and --fp8 exclude each other");
  PlanRequest& request = options.request;
  request.shape = options.shape;
  const bool of_megatron_lm = request.shape.experts > 0 || request.shape.key_value_rank > 0;
  if (of_megatron_lm && plan.count("--framework") == 0) request.setup.program = Program::kMegatronLm;
  request.setup.precision = options.fp32   ? Precision::kFp32
                            : options.fp16 ? Precision::kFp16
                            : options.fp8  ? Precision::kFp8
                                           : Precision::kBf16;
  const bool scripts = !options.sbatch.empty();
  if (options.for_cairn || scripts) request.setup.program = Program::kCairn;
  if (request.shape.layers == 0 || request.shape.hidden == 0 || request.shape.heads == 0 ||
      request.shape.vocab == 0)
    return InvalidArgument(
        "a model is needed: --model config.json, or --num-layers, --hidden-size, --num-attention-heads and "
        "--vocab-size");
  if (request.setup.global_batch == 0) return InvalidArgument("--global-batch-size is needed");
  if (options.swiglu && options.model.empty()) {
    DenseModules gated = kLlamaModules;
    gated.positions = request.setup.program != Program::kCairn;
    request.shape.modules = gated;
  }
  if (request.setup.program == Program::kCairn &&
      (request.setup.sequence_parallel || request.setup.flash_attention ||
       request.setup.precision == Precision::kFp8))
    return InvalidArgument(
        "cairn train supports neither sequence parallelism nor FP8, and chooses its attention itself; plan "
        "without --for-cairn and --sbatch");
  if (of_megatron_lm && options.hidden_near > 0)
    return InvalidArgument("--for-hidden-near proposes shapes without experts and latent attention only");
  if (scripts && SamplesOf(options) == 0)
    return InvalidArgument("--sbatch needs --train-samples, --train-tokens or --train-iters");
  CAIRN_ASSIGN_OR_RETURN(request.cluster, FindCluster(options.cluster));
  return OkStatus();
}

double SamplesOf(const PlanFlags& options) {
  if (options.train_samples > 0) return static_cast<double>(options.train_samples);
  if (options.train_tokens > 0) return static_cast<double>(options.train_tokens) / options.request.shape.seq;
  return static_cast<double>(options.train_iters) * options.request.setup.global_batch;
}

}  // namespace cairn
