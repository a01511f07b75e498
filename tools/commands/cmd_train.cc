// cairn does not link the trainer, it starts cairn-train, which is in the same directory. Without
// --nproc-per-node this process becomes cairn-train, so signals and exit statuses pass without help. With it,
// mpirun is started and supervised (supervise.h), and the arguments are checked here first: each rank would
// find the same mistake, after all of them have started.

#include <csignal>
#include <cstring>
#include <optional>

#include "ckpt/base/parse_number.h"
#include "convert/formats/systems.h"
#include "runtime/config/mpirun_args.h"
#include "runtime/config/named_tokenizer.h"
#include "tools/cli/completion.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/commands/commands.h"
#include "tools/place/place.h"
#include "tools/process/programs.h"
#include "tools/process/supervise.h"

namespace cairn {
namespace {

constexpr std::string_view kRanksFlag = "--nproc-per-node";
constexpr const char* kSummary =
    "train a model; --nproc-per-node N starts N ranks here; without it, joins those of mpirun, srun or "
    "torchrun";

Result<int> ParseRanks(std::string_view text) {
  if (const auto ranks = ParseNumber<int>(text, 1)) return *ranks;
  return InvalidArgument("{} takes a number of ranks, not '{}'", kRanksFlag, text);
}

// Takes --nproc-per-node N (or =N) out of `arguments`; nothing if it is missing.
Result<std::optional<int>> TakeRanks(std::vector<std::string>& arguments) {
  std::optional<int> ranks;
  const std::string flag_and_value = fmt::format("{}=", kRanksFlag);
  for (size_t i = 0; i < arguments.size();) {
    const bool joined = arguments[i].starts_with(flag_and_value);
    if (!joined && arguments[i] != kRanksFlag) {
      ++i;
      continue;
    }
    if (!joined && i + 1 == arguments.size())
      return InvalidArgument("{} takes a number of ranks", kRanksFlag);
    CAIRN_ASSIGN_OR_RETURN(
        ranks, ParseRanks(joined ? arguments[i].substr(kRanksFlag.size() + 1) : arguments[i + 1]));
    arguments.erase(arguments.begin() + i, arguments.begin() + i + (joined ? 1 : 2));
  }
  return ranks;
}

// The trainer knows only Cairn's own steps.
Status CheckLoad(const std::vector<std::string>& arguments) {
  constexpr std::string_view kFlag = "--load";
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string load;
    if (arguments[i] == kFlag && i + 1 < arguments.size()) load = arguments[i + 1];
    if (arguments[i].starts_with("--load=")) load = arguments[i].substr(kFlag.size() + 1);
    FileSystem& fs = FileSystem::Posix();
    if (const auto place = Locate(fs, load);
        place.ok() && !place->native() && Recognise(fs, place->path).ok())
      return NotSupported(
          "{} was written by another system; run `cairn convert {} DIR --to native` first, then give --load "
          "DIR, and --finetune if it has no optimizer states",
          load, load);
  }
  return OkStatus();
}

// The trainer would find the same mistakes after all ranks have started. Only the trainer reads a
// checkpoint's model, which fills in missing flags.
Status CheckArguments(const std::vector<std::string>& command, int ranks) {
  std::vector<const char*> argv;
  for (const std::string& word : command) argv.push_back(word.c_str());
  CAIRN_ASSIGN_OR_RETURN(ParsedCommandLine parsed,
                         ParseCommandLine(static_cast<int>(argv.size()), argv.data()));
  if (!parsed.text.empty()) return OkStatus();
  TrainConfig& config = parsed.config;
  CAIRN_RETURN_IF_ERROR(TakeTokenizer(config).status());
  if (!config.load.empty() || FileSystem::Posix().Stat(config.save).ok()) return OkStatus();
  return Validate(config, ranks).status();
}

std::string SignalLine(int signal) {
  return fmt::format("a rank exited on signal {} ({}){}", signal, ::strsignal(signal),
                     signal == SIGKILL ? "; the kernel does that when memory runs out" : "");
}

Result<int> RunTrain(std::vector<std::string> arguments) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<int> ranks, TakeRanks(arguments));
  CAIRN_RETURN_IF_ERROR(CheckLoad(arguments));
  CAIRN_ASSIGN_OR_RETURN(const std::string trainer, FindTrainer());
  bool help = false;
  for (const std::string& argument : arguments) help = help || argument == "--help" || argument == "-h";
  arguments.insert(arguments.begin(), trainer);
  if (ranks && !help) {
    CAIRN_RETURN_IF_ERROR(CheckArguments(arguments, *ranks));
    CAIRN_ASSIGN_OR_RETURN(
        const int status, Supervise(MpirunArguments(*ranks, arguments), [] {
          PrintProblem("asked to stop: the ranks finish their step, save and exit (again: at once)");
        }));
    if (status > 128) PrintProblem(SignalLine(status - 128));  // mpirun does not say it
    return status;
  }
  return Become(arguments);
}

}  // namespace

void AddTrainCommand(CLI::App& app, Verb& verb) {
  CLI::App* train = app.add_subcommand("train", kSummary);
  train->set_help_flag();  // cairn-train's own is the real one
  train->prefix_command();
  train->callback(
      [train, &verb] { verb = [arguments = train->remaining()] { return RunTrain(arguments); }; });
}

std::string CompleteTrain(const std::vector<std::string>& words) {
  TrainConfig config;
  std::string config_file;
  int ranks = 1;
  CLI::App train;
  train.add_option(std::string(kRanksFlag), ranks)->type_name("N");
  DeclareTrainFlags(train, config, config_file);
  return Complete(train, words);
}

}  // namespace cairn
