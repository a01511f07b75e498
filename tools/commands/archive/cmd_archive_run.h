// `cairn archive run`: the one verb of archive that writes into a store.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/archive/store/store.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveRunCommand(CLI::App& archive, Verb& verb);

// The file that a member lies in, and how many there are.
std::string FilesText(const ArchiveRecord& record);

// CleanStore; says which files look like Cairn's leftovers and are not.
Status CleanAndReport(const Store& store);

// Damage is what archive's verbs look for (exit status 1); everything else is trouble.
ExitCode ArchiveExitCode(const Status& status);

// Buffers in flight, a window to verify, one to read back: what run and restore take, whatever the size of a
// step.
inline constexpr uint64_t kArchivePeakMemory = 64 << 20;

}  // namespace cairn
