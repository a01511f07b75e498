// This process becomes cairn-data, a Python program over the tokenizers that everybody uses
// (python/cairn/data). It is next to this program, or in PATH.
#include "tools/cli/progress.h"
#include "tools/commands/commands.h"
#include "tools/process/programs.h"
#include "tools/process/supervise.h"

namespace cairn {
namespace {

Result<int> RunData(std::vector<std::string> arguments) {
  const std::string beside = ProgramBeside("cairn-data");
  if (Progress::IsOff()) arguments.insert(arguments.begin(), "--no-progress");
  arguments.insert(arguments.begin(), beside.empty() ? "cairn-data" : beside);
  const Status failed = Become(arguments);
  return NotFound("{}; pip install 'cairn-checkpoints[data]' installs it", failed.message());
}

}  // namespace

void AddDataCommand(CLI::App& app, Verb& verb) {
  CLI::App* data =
      app.add_subcommand("data", "turn text or JSON lines into P.bin and P.idx, Megatron's indexed format");
  data->set_help_flag();  // cairn-data's own is the real one
  data->prefix_command();
  data->callback([data, &verb] { verb = [arguments = data->remaining()] { return RunData(arguments); }; });
}

}  // namespace cairn
