// The same table of flags drives the command line and the TOML file; std::visit chooses by the type of the
// field. The command line is parsed first, because it names the file. The file then fills only those flags
// that the command line did not give.

#include "runtime/config/train_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>

#include "ckpt/base/nearest_name.h"
#include "ckpt/base/toml_fields.h"
#include "runtime/config/deepspeed_config.h"
#include "runtime/config/flag_aliases.h"
#include "runtime/config/ignored_flags.h"
#include "runtime/config/implied_settings.h"
#include "runtime/config/wrapped_help.h"

namespace cairn {
namespace {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // clang before 17 does not find it by itself

// BigScience's scripts group the digits of a number, as Python does: 300_000_000. Only numbers: a path may
// look the same (--save 2024_05_01).
std::string WithoutUnderscores(std::string text) {
  const bool number = !text.empty() && text.front() != '_' && text.back() != '_' &&
                      text.find("__") == std::string::npos &&
                      text.find_first_not_of("0123456789_") == std::string::npos;
  if (number) std::erase(text, '_');
  return text;
}

// Declares one row to CLI11. If a flag is given twice the last one counts, so scripts can append.
void Declare(CLI::App& app, const Flag& flag, TrainConfig& config) {
  const std::string name = fmt::format("--{}", flag.name);
  const std::string help(flag.help);
  CLI::Option* option =
      std::visit(Overloaded{[&](bool TrainConfig::*field) { return app.add_flag(name, config.*field, help); },
                            [&](auto TrainConfig::*field) {
                              return app.add_option(name, config.*field, help)->capture_default_str();
                            }},
                 flag.field);
  if (std::holds_alternative<int TrainConfig::*>(flag.field) ||
      std::holds_alternative<int64_t TrainConfig::*>(flag.field) ||
      std::holds_alternative<double TrainConfig::*>(flag.field) ||
      std::holds_alternative<std::vector<int64_t> TrainConfig::*>(flag.field))
    option->transform(WithoutUnderscores);
  if (option->get_expected_max() == 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  if (!flag.value.empty()) option->type_name(std::string(flag.value));
  option->group(std::string(flag.group));
}

template <typename T>
bool TakeValue(const toml::node& node, T& out) {
  const std::optional<T> value = node.value<T>();
  if (value) out = *value;
  return value.has_value();
}

// A list, or a single value for a list of one.
template <typename T>
bool TakeValue(const toml::node& node, std::vector<T>& out) {
  out.assign(1, T());
  const toml::array* array = node.as_array();
  if (!array) return TakeValue(node, out[0]);
  out.assign(array->size(), T());
  for (size_t i = 0; i < array->size(); ++i)
    if (!TakeValue(*array->get(i), out[i])) return false;
  return true;
}

// A number where text is also fine: save-interval = 100.
bool TakeValue(const toml::node& node, std::string& out) {
  if (const std::optional<int64_t> number = node.value_exact<int64_t>())
    out = std::to_string(*number);
  else if (const std::optional<std::string> text = node.value<std::string>())
    out = *text;
  else
    return false;
  return true;
}

// A flag without effect may appear in a file as on the command line; a switch that is off is not reported.
Status NoteKey(const IgnoredFlag& flag, const TomlField& key, std::vector<std::string>& notes) {
  const std::optional<bool> on = key.value.value_exact<bool>();
  if (on == false) return OkStatus();
  std::string text;
  if (!on) (void)TakeValue(key.value, text);
  Result<std::string> note = NoteFor(flag, {std::move(text)});
  if (!note.ok()) return note.status().WithContext(key.where);
  if (std::ranges::find(notes, *note) == notes.end()) notes.push_back(*std::move(note));
  return OkStatus();
}

Status ApplyField(const TomlField& key, const std::vector<std::string_view>& given, TrainConfig& config,
                  std::vector<std::string_view>* filled) {
  const Flag* const flag = FindTrainFlag(key.name);
  const auto ignored = std::ranges::find(IgnoredFlags(), key.name, &IgnoredFlag::name);
  if (ignored != IgnoredFlags().end()) return NoteKey(*ignored, key, config.notes);
  if (flag == nullptr) {
    std::vector<std::string> names;
    for (const Flag& known : TrainFlags()) names.emplace_back(known.name);
    return UnknownTomlKey(key, names, "keys are the flags of --help");
  }
  if (std::ranges::find(given, flag->name) != given.end()) return OkStatus();
  const bool fits = std::visit([&](auto field) { return TakeValue(key.value, config.*field); }, flag->field);
  if (!fits) return InvalidArgument("{}: the value of '{}' has the wrong type", key.where, key.key);
  if (filled) filled->push_back(flag->name);
  return OkStatus();
}

Result<std::string> ReadConfigFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || file.bad()) return NotFound("--config {}: the file cannot be read", path);
  return text;
}

// The flag that "--num-layer" was probably meant to be: "--num-layers". Empty: none is near.
std::string NearestFlag(const std::string& word) {
  std::vector<std::string> names;
  for (const Flag& flag : TrainFlags()) names.emplace_back(flag.name);
  for (const FlagAlias& alias : FlagAliases()) names.emplace_back(alias.old_name);
  for (const IgnoredFlag& flag : IgnoredFlags()) names.emplace_back(flag.name);
  const std::string nearest = NearestName(names, word.substr(2, word.find('=') - 2));
  return nearest.empty() ? "" : "--" + nearest;
}

// CLI11 lists what it does not know backwards, values too.
Status CheckKnown(const std::vector<std::string>& unknown) {
  std::string names;
  for (const std::string& word : unknown) {
    if (!word.starts_with("--") && !names.empty()) continue;
    names += (names.empty() ? "" : ", ") + word;
    const std::string nearest = word.starts_with("--") ? NearestFlag(word) : "";
    if (!nearest.empty()) names += fmt::format(" (did you mean {}?)", nearest);
  }
  if (names.empty()) return OkStatus();
  return InvalidArgument("cairn train does not know {}; see --help", names);
}

}  // namespace

Status ApplyToml(std::string_view text, const std::string& origin, const std::vector<std::string_view>& given,
                 TrainConfig& config, std::vector<std::string_view>* filled) {
  return TakeGroupedToml(text, origin,
                         [&](const TomlField& key) { return ApplyField(key, given, config, filled); });
}

void DeclareTrainFlags(CLI::App& app, TrainConfig& config, std::string& config_file) {
  app.add_option("--config", config_file,
                 "TOML file of the flags below, by the same names; the command line wins")
      ->type_name("FILE");
  app.set_version_flag("--version", "cairn-train " CAIRN_VERSION);
  for (const Flag& flag : TrainFlags()) Declare(app, flag, config);
}

Result<ParsedCommandLine> ParseCommandLine(int argc, const char* const* argv) {
  ParsedCommandLine parsed;
  CLI::App app(
      "Trains a GPT and keeps its checkpoints. Start it with mpirun, srun --mpi=pmix or torchrun-style "
      "variables:\n"
      "  mpirun -n 4 cairn-train --config train.toml --tensor-model-parallel-size 2",
      "cairn-train");
  std::string config_file;
  app.formatter(std::make_shared<WrappedHelp>());
  app.get_formatter()->column_width(46);
  DeclareTrainFlags(app, parsed.config, config_file);
  app.allow_extras();
  DeclareIgnoredFlags(app);
  std::vector<std::string> words = InCairnNames({argv + std::min(argc, 1), argv + argc});
  std::ranges::reverse(words);  // last first, as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    parsed.text = app.help();
    return parsed;
  } catch (const CLI::CallForVersion& version) {
    parsed.text = std::string(version.what()) + "\n";
    return parsed;
  } catch (const CLI::ParseError& error) {
    return InvalidArgument("{}; see --help", error.what());
  }
  CAIRN_RETURN_IF_ERROR(CheckKnown(app.remaining()));
  CAIRN_ASSIGN_OR_RETURN(parsed.config.notes, NotesOnIgnoredFlags(app));
  if (parsed.config.eod_mask_loss && app.count("--calculate-per-token-loss") > 0)
    return NotSupported(
        "--calculate-per-token-loss and --eod-mask-loss: the loss is the mean of the micro-batches' means");
  std::vector<std::string_view>& given = parsed.given;
  for (const Flag& flag : TrainFlags())
    if (app.count(fmt::format("--{}", flag.name)) > 0) given.push_back(flag.name);
  if (!config_file.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(config_file));
    std::vector<std::string_view> filled;
    CAIRN_RETURN_IF_ERROR(ApplyToml(text, config_file, given, parsed.config, &filled));
    given.insert(given.end(), filled.begin(), filled.end());
  }
  if (!parsed.config.deepspeed_config.empty())
    CAIRN_RETURN_IF_ERROR(ApplyDeepSpeedFile(parsed.config.deepspeed_config, given, parsed.config));
  ApplyImpliedSettings(parsed.config);
  return parsed;
}

}  // namespace cairn
