#include "tools/commands/archive/archive_verbs.h"

namespace cairn {
namespace {

struct ArchiveRecallOptions {
  std::string store;
  std::vector<std::string> selectors;
  RecallFlags recall;
  bool dry_run = false;
};

Result<int> RunRecall(const ArchiveRecallOptions& options) {
  const Store store(FileSystem::Posix(), options.store);
  std::vector<ArchiveMember> members;
  for (const std::string& selector : options.selectors) {
    CAIRN_ASSIGN_OR_RETURN(const auto chosen, ChosenMembers({store, selector}));
    members.insert(members.end(), chosen.begin(), chosen.end());
  }
  if (options.selectors.empty()) {
    CAIRN_ASSIGN_OR_RETURN(members, ChosenMembers({store, ""}));
  }
  CAIRN_ASSIGN_OR_RETURN(const RecallCommands commands, options.recall.Commands());
  const std::vector<std::string> paths = FilesOf(store, members);
  if (options.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(const auto stubs, StubsInTapeOrder(FileSystem::Posix(), paths, commands));
    for (const std::string& path : stubs) fmt::print("{}\n", path);
    return kExitDone;
  }
  CAIRN_ASSIGN_OR_RETURN(const size_t recalled, Recall(FileSystem::Posix(), paths, commands));
  if (paths.size() == members.size())
    fmt::print("{} of {} members were on tape\n", recalled, members.size());
  else
    fmt::print("{} of {} files, which hold {} members, were on tape\n", recalled, paths.size(),
               members.size());
  return kExitDone;
}

}  // namespace

void AddArchiveRecall(CLI::App& archive, Verb& verb) {
  const auto [recall, options] =
      AddVerb(archive, verb, "recall", "bring members back from tape, in the order of the tape", RunRecall);
  recall->add_option("STORE", options->store, "the store")->required();
  recall->add_option("MEMBER", options->selectors, "RUN@STEP; default: all");
  options->recall.AddTo(*recall);
  recall->add_flag("--dry-run", options->dry_run,
                   "list what is on tape, in the order of the tape; recall nothing");
  recall->footer(HelpFooter("cairn archive recall /tape/me/store gpt@5000 --recall 'dmget {paths}'"));
}

}  // namespace cairn
