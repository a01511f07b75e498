// The verbs of `cairn archive`, one per file, and what several of them share.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/archive/policy/policy_run.h"
#include "tools/archive/tar/recall.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveRun(CLI::App& archive, Verb& verb);
void AddArchivePlan(CLI::App& archive, Verb& verb);
void AddArchivePrune(CLI::App& archive, Verb& verb);
void AddArchiveBundle(CLI::App& archive, Verb& verb);
void AddArchiveSchedule(CLI::App& archive, Verb& verb);
void AddArchiveLs(CLI::App& archive, Verb& verb);
void AddArchiveVerify(CLI::App& archive, Verb& verb);
void AddArchiveRestore(CLI::App& archive, Verb& verb);
void AddArchiveRecall(CLI::App& archive, Verb& verb);

struct ArchivePlanOptions {
  std::string policy;
  bool json = false;
};
Result<int> RunArchivePlan(const ArchivePlanOptions& options);

// `run --policy`. The report goes into the policy's status file.
Result<int> RunByPolicy(const std::string& policy_path, bool dry_run, bool json);

// The flags that say how files come back from tape.
struct RecallFlags {
  std::string policy;
  RecallCommands commands;

  void AddTo(CLI::App& command);
  // The policy's, if one is given. Errors: those of ReadPolicy.
  Result<RecallCommands> Commands() const;
};

// RUN@STEP.
std::string MemberText(const ArchiveMember& member);
// The file of a member, and how many there are.
std::string FilesText(const ArchiveRecord& record);
// The paths of the members' files, each once.
std::vector<std::string> FilesOf(const Store& store, const std::vector<ArchiveMember>& members);

// The member that the selector names; all members if it is empty. Errors: NotFound if there is none.
Result<std::vector<ArchiveMember>> ChosenMembers(const MemberName& name);

// Writes the README and removes leftovers; prints which files look like leftovers but are not. Requires the
// lock.
Status PrepareStoreAndTell(const Store& store);

// The events of bundles, printed unless `quiet`.
PolicyEvents PrintedBundling(bool quiet);
nlohmann::ordered_json BundlingJson(const BundlePlan& bundling);
void PrintBundling(const BundlePlan& bundling, const Policy& policy);

// Exit status 1 for damage, which archive's verbs check for; 2 for everything else.
ExitCode ArchiveExitCode(const Status& status);

// Buffers in flight, one window to verify and one to read back: what run and restore need for a step of any
// size.
inline constexpr uint64_t kArchivePeakMemory = 64 << 20;

}  // namespace cairn
