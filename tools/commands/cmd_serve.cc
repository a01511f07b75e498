#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "tools/cli/exit_code.h"
#include "tools/commands/commands.h"
#include "tools/interval/run_facts.h"
#include "tools/serve/server.h"

namespace cairn {
namespace {

// A signal that ends the training must not end its save; the closed socket ends this process once the save is
// done.
void IgnoreSignalsOfTheJob() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) (void)std::signal(number, SIG_IGN);
}

Result<int> RunServe() {
  struct stat info {};
  if (::fstat(STDIN_FILENO, &info) != 0 || !S_ISSOCK(info.st_mode))
    return InvalidArgument("serve: stdin is not a socket; cairn.torch starts this helper, a user does not");
  IgnoreSignalsOfTheJob();
  FileSystem& fs = FileSystem::Posix();
  CAIRN_RETURN_IF_ERROR(ServeTrainer(
      fs, UniqueFd(STDIN_FILENO),
      [&fs](const std::string& run_dir, bool parity) { return FailuresBeyondLocal(fs, run_dir, parity); }));
  return kExitDone;
}

}  // namespace

void AddServeCommand(CLI::App& app, Verb& verb) {
  CLI::App* serve =
      app.add_subcommand("serve", "save and load for a training in Python, as its helper process");
  serve->footer(
      "cairn.torch starts one for each rank, with a socket as stdin: docs/serve-protocol.md. It finishes the "
      "save that it was given even if the training dies.\n\n" +
      HelpFooter("python -c 'import cairn.torch' # starts it at the first save"));
  serve->callback([&verb] { verb = [] { return RunServe(); }; });
}

}  // namespace cairn
