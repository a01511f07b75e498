// The verbs of `cairn`, one file cmd_NAME.cc each. A verb adds its subcommand to the program's, and sets
// `verb` if that subcommand was given.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveCommand(CLI::App& app, Verb& verb);  // archive/
void AddCompletionCommand(CLI::App& app, Verb& verb);
void AddConvertCommand(CLI::App& app, Verb& verb);
void AddDataCommand(CLI::App& app, Verb& verb);
void AddDiffCommand(CLI::App& app, Verb& verb);
void AddDoctorCommand(CLI::App& app, Verb& verb);
void AddFingerprintCommand(CLI::App& app, Verb& verb);
void AddInspectCommand(CLI::App& app, Verb& verb);
void AddLsCommand(CLI::App& app, Verb& verb);
void AddPlanCommand(CLI::App& app, Verb& verb);
void AddReportCommand(CLI::App& app, Verb& verb);
void AddReshapeCommand(CLI::App& app, Verb& verb);
void AddSealCommand(CLI::App& app, Verb& verb);
void AddServeCommand(CLI::App& app, Verb& verb);
void AddStripCommand(CLI::App& app, Verb& verb);
void AddTagCommand(CLI::App& app, Verb& verb);
void AddTrainCommand(CLI::App& app, Verb& verb);
void AddVerifyCommand(CLI::App& app, Verb& verb);

// Subcommands of a verb, in separate files.
void AddPlanPredict(CLI::App& plan, Verb& verb);
void AddReportMatch(CLI::App& report, Verb& verb);
void AddReportRewrite(CLI::App& report, Verb& verb);

// Complete() (completion.h) for the words after `cairn`: the subcommand declares no flags, because it passes
// all on.
std::string CompleteTrain(const std::vector<std::string>& words);

}  // namespace cairn
