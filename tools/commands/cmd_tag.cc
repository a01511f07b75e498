#include <nlohmann/json.hpp>

#include "ckpt/run/step_tags.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/text_table.h"
#include "tools/commands/commands.h"
#include "tools/place/place.h"

namespace cairn {
namespace {

struct TagOptions {
  std::string place;  // RUN, RUN@STEP or RUN@NAME
  std::string name;
  bool remove = false, dry_run = false, json = false;
};

Result<int> ListTags(const std::string& run_dir, bool json) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_RETURN_IF_ERROR(fs.Stat(run_dir).status());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepTag> tags, ReadTags(fs, run_dir));
  nlohmann::ordered_json facts = nlohmann::ordered_json::array();
  TextTable table({"tag", "step", "directory"});
  for (const StepTag& tag : tags) {
    const std::string place = PlaceOfTag(fs, run_dir, tag);
    facts.push_back(
        {{"tag", tag.name}, {"step", tag.step}, {"manifest", tag.manifest}, {"directory", place}});
    table.Add({tag.name, std::to_string(tag.step), place.empty() ? "gone" : place});
  }
  if (json)
    PrintJson(facts);
  else if (tags.empty())
    PrintLine("{}: no tags", run_dir);
  else
    table.Print();
  return kExitDone;
}

Result<int> RunTag(const TagOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  const char* would = options.dry_run ? "would be " : "";
  if (options.remove) {
    const size_t at = options.place.rfind('@');
    if (at == std::string::npos || !options.name.empty())
      return InvalidArgument("--remove takes one argument, RUN@NAME");
    const std::string run_dir = options.place.substr(0, at), name = options.place.substr(at + 1);
    CAIRN_RETURN_IF_ERROR(RemoveTag(fs, run_dir, name, options.dry_run));
    PrintLine("{}: the tag '{}' {}removed; its step stays", run_dir, name, options.dry_run ? would : "is ");
    return kExitDone;
  }
  if (options.name.empty()) return ListTags(options.place, options.json);
  CAIRN_ASSIGN_OR_RETURN(const std::string step, StepPath(fs, options.place));
  CAIRN_RETURN_IF_ERROR(AddTag(fs, step, options.name, options.dry_run));
  PrintLine("{}: {}tagged '{}'", step, would, options.name);
  return kExitDone;
}

}  // namespace

void AddTagCommand(CLI::App& app, Verb& verb) {
  const auto [tag, options] =
      AddVerb(app, verb, "tag", "give a step a name, by which retention keeps it: RUN@NAME", RunTag);
  tag->add_option("CKPT", options->place,
                  "RUN@STEP or a step to tag; RUN to list its tags; RUN@NAME to remove one")
      ->required();
  tag->add_option("NAME", options->name, "a letter, then letters, digits, '.', '_' and '-'");
  tag->add_flag("--remove", options->remove, "remove the tag RUN@NAME; its step stays");
  tag->add_flag("--dry-run", options->dry_run, "check everything, write nothing");
  tag->add_flag("--json", options->json, "print the tags of RUN as JSON");
  tag->footer(
      "RUN@NAME is taken wherever RUN@STEP is. The tag belongs to the step's content: if the training saves "
      "the number again, the tag stays with the earlier save.\n\n" +
      HelpFooter("cairn tag runs/gpt@5000 best"));
}

}  // namespace cairn
