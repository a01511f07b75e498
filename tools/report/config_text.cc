// Nearly every form of line ends in TakeField: the forms differ in the text around names and values, not in
// their meaning. A name is brought to one spelling, then looked up among the counts and the switches. The
// first value of a field is kept. Recomputation is the exception: a dump has several arguments for it, of
// which one suffices.

#include "tools/report/config_text.h"

#include <algorithm>
#include <string>

#include "tools/report/numbers.h"

namespace cairn {
namespace {

constexpr size_t kLongestList = 1 << 18;  // characters of moe_layer_freq

bool IsNameCharacter(char c) { return IsWordCharacter(c) || c == '-'; }

std::string Canonical(std::string_view name) {
  std::string canonical;
  for (const char c : name.substr(0, 64)) canonical += c == '-' || c == ' ' ? '_' : LowerCase(c);
  return canonical;
}

std::string_view Unquoted(std::string_view value) {
  value = Trim(value);
  value = value.substr(0, value.find_last_not_of(",\"'\\") + 1);
  return value.substr(std::min(value.find_first_not_of("\"'"), value.size()));
}

void SetPrecision(std::string_view word, RunConfig& config) {
  if (!config.precision) config.precision = std::string(word);
}

// Arguments that are not counts.
bool TakeSwitch(const std::string& name, std::string_view value, RunConfig& config) {
  const bool off = SameWord(value, "false") || SameWord(value, "none") || value == "0";
  if (name == "checkpoint_activations" || name == "deepspeed_activation_checkpointing") {
    // A dump has both; one of them suffices.
    if (!off || !config.recompute) config.recompute = !off || config.recompute.value_or(false);
    return true;
  }
  if (name == "recompute_granularity" || name == "activations_checkpoint_granularity") {
    const bool full = SameWord(value, "full");  // selective recomputes almost nothing
    if (full || !config.recompute) config.recompute = full || config.recompute.value_or(false);
    return true;
  }
  for (const auto& [word, field] : {std::pair{"swiglu", &RunConfig::gated},
                                    {"group_query_attention", &RunConfig::grouped},
                                    {"untie_embeddings_and_output_weights", &RunConfig::untied},
                                    {"multi_latent_attention", &RunConfig::latent}}) {
    if (name != word) continue;
    if (!(config.*field)) config.*field = !off;
    return true;
  }
  if (name == "num_experts" || name == "num_moe_experts") {
    // Megatron-DeepSpeed has a list.
    if (!config.mixture) config.mixture = !off && value != "1" && value != "[1]";
    return true;
  }
  if (name == "moe_layer_freq") {
    if (!config.mixture_layers) config.mixture_layers = std::string(value.substr(0, kLongestList));
    return true;
  }
  if (name == "fp16" || name == "bf16") {
    if (!off) SetPrecision(name, config);
    return true;
  }
  return false;
}

// "using world size: 16, data-parallel-size: 1 and model-parallel size: 2": commas or "and" separate names.
void TakeWorldSizes(std::string_view text, RunConfig& config) {
  text.remove_prefix(FindWord(text, "world size:"));
  for (size_t colon = text.find(':'); colon != npos; colon = text.find(':')) {
    TakeField(text.substr(0, colon), text.substr(colon + 1), config);
    const size_t comma = text.find(", ", colon), conjunction = text.find(" and ", colon);
    if (comma == npos && conjunction == npos) return;
    text.remove_prefix(comma < conjunction ? comma + 2 : conjunction + 5);
  }
}

// "8,030,261,248 total parameters"; -1 if the text has no number.
double NumberWithCommas(std::string_view text) {
  std::string digits(text.substr(0, text.find(' ')));
  std::erase(digits, ',');
  return static_cast<double>(CountOf(digits));
}

// `count`, of which `of_billion` are 10^9 parameters.
void TakeSize(double count, double of_billion, std::optional<double>& billions) {
  if (count > 0 && !billions) billions = count / of_billion;
}

// Words before a number in sentences of cairn train and of torchtitan, and the name of what it counts
// (run_config.h).
constexpr std::pair<std::string_view, std::string_view> kFacts[] = {
    {"TP=", "tp"},
    {"PP=", "pp"},
    {"DP=", "dp"},
    {"ZeRO=", "zero"},
    {"local batch size ", "mbs"},
    {"global batch size ", "gbs"},
    {"gradient accumulation steps ", "gas"},
    {"sequence length ", "seq"},
    {"total steps ", "iters"},
    {" pp=", "pp"},
    {" cp=", "cp"},
    {" tp=", "tp"},
};

// "training 136192 parameters in fp32 with TP=2 PP=1 DP=1 ZeRO=0"
// "Trainer is initialized with local batch size 8, global batch size 64, ..., total steps 10 (warmup 2)"
// "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1"
void TakeFacts(std::string_view text, RunConfig& config) {
  for (const auto& [words, name] : kFacts)
    if (const std::string_view value = After(text, words); !value.empty())
      TakeField(name, value.substr(0, value.find_first_of(", (")), config);
  const int64_t replicas = CountOf(After(text, " dp_replicate=")),
                shards = CountOf(After(text, " dp_shard="));
  if (replicas > 0 && shards > 0 && !config.dp) config.dp = replicas * shards;
  const size_t in = text.find(" parameters in ");
  if (in == npos) return;
  TakeSize(NumberWithCommas(After(text.substr(0, in), "training ")), 1e9, config.size_b);
  const std::string_view type = text.substr(in + 15, 4);
  if (type == "fp32" || type == "fp16" || type == "bf16") SetPrecision(type, config);
}

}  // namespace

bool TakeField(std::string_view name, std::string_view value, RunConfig& config) {
  const std::string canonical = Canonical(name);
  value = Unquoted(value);
  const ConfigCount* count = CountOfName(canonical);
  if (!count) return TakeSwitch(canonical, value, config);
  if (count->field == &RunConfig::experts) TakeSwitch(canonical, value, config);
  const auto number = CountAt(value);
  if (number && !(config.*count->field) && (*number > 0 || count->field == &RunConfig::zero))
    config.*count->field = *number;
  return true;
}

bool TakeDumpedArgument(std::string_view text, RunConfig& config) {
  const size_t dots = text.find(" ...");
  if (dots == npos) return false;
  size_t begin = dots;
  while (begin > 0 && IsNameCharacter(text[begin - 1])) --begin;
  const size_t end = text.find_first_not_of('.', dots + 1);
  if (begin == dots || end == npos || text[end] != ' ') return false;
  return TakeField(text.substr(begin, dots - begin), text.substr(end), config);
}

int TakeCommandLine(std::string_view text, RunConfig& config) {
  int told = 0;
  for (size_t at = text.find("--"); at != npos; at = text.find("--", at)) {
    const size_t begin = at + 2;
    for (at = begin; at < text.size() && IsNameCharacter(text[at]);) ++at;
    if (at == begin) continue;
    const std::string_view name = text.substr(begin, at - begin);
    const size_t value = std::min(text.find_first_not_of(" ='\",", at), text.size());
    const std::string_view argument = text.substr(value, text.find_first_of(" '\",", value) - value);
    told += TakeField(name, argument.starts_with("--") ? "true" : argument, config);
  }
  return told;
}

void TakeJsonFields(std::string_view text, RunConfig& config) {
  for (const std::string_view name : {"stage", "train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps", "steps_per_print"}) {
    const std::string_view rest = After(text, "\"" + std::string(name) + "\"");
    if (rest.starts_with(':')) TakeField(name == "stage" ? "zero_stage" : name, rest.substr(1), config);
  }
}

void TakeSentence(std::string_view text, RunConfig& config) {
  for (const std::string_view words : {"with TP=", "with local batch size ", "mesh with parallelism: "})
    if (text.find(words) != npos) return TakeFacts(text, config);
  if (FindWord(text, "world size:") != npos) return TakeWorldSizes(text, config);
  if (text.find("padded vocab") != npos) TakeField("padded_vocab_size", After(text, "new size: "), config);
  TakeSize(NumberOf(After(text, "TOTAL_PARAMS=")), 1e9, config.size_b);
  // nanoGPT's count is in millions.
  if (text.ends_with('M')) TakeSize(NumberOf(After(text, "number of parameters: ")), 1e3, config.size_b);
  // torchtitan: "Model llama3 8B size: 8,030,261,248 total parameters", and of a mixture "sparse 9,840,640".
  if (text.find(" total parameters") != npos)
    TakeSize(NumberWithCommas(After(text, " size: ")), 1e9, config.size_b);
  if (const size_t sparse = text.find(", sparse "); sparse != npos && !config.mixture)
    config.mixture = NumberWithCommas(text.substr(sparse + 9)) > 0;
  TakeSize(NumberWithCommas(After(text, ", active ")), 1e9, config.active_b);
}

}  // namespace cairn
