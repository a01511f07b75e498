#include "tools/source/open_ckpt.h"

#include <algorithm>

#include "ckpt/run/run_dir.h"
#include "convert/foreign/config_model.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/source.h"
#include "tools/archive/store/store.h"
#include "tools/cli/output.h"

namespace cairn {
namespace {

void PrintPassedOver(const Status& skipped) { PrintProblem("passed over: " + skipped.message()); }

// An archived member, and what it is read through.
struct OpenedMember {
  std::unique_ptr<FileSystem> view;
  std::string path;  // of the view's one directory
  Form form = Form::kFull;
};

Result<OpenedMember> OpenMemberOf(const MemberName& name) {
  CAIRN_ASSIGN_OR_RETURN(const ArchiveMember member, FindMember(name.store, name.selector));
  CAIRN_ASSIGN_OR_RETURN(auto view, OpenMember({name.store, member.tar}));
  std::string path = view->root();
  return OpenedMember{std::move(view), std::move(path), member.form};
}

// Among the files of another system, as where cairn.megatron saved.
bool HoldsStep(const OpenedMember& member) {
  const auto steps = ListSteps(*member.view, member.path);
  return steps.ok() && !steps->empty();
}

Result<OpenedStep> OpenStep(OpenedMember member, const std::string& argument) {
  if (member.form == Form::kFiles && !HoldsStep(member))
    return NotSupported(
        "{}: files of another system; make a step of them with cairn convert {} DST --to native", member.path,
        argument);
  OpenedStep opened{.view = std::move(member.view), .reader = nullptr};
  CAIRN_ASSIGN_OR_RETURN(opened.reader, OpenCheckpoint(*opened.view, member.path, PrintPassedOver));
  return opened;
}

Result<OpenedSource> OpenArchived(const MemberName& name, const std::string& argument,
                                  const OpenOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(OpenedMember member, OpenMemberOf(name));
  OpenedSource opened;
  const bool other_system = member.form == Form::kFiles && !HoldsStep(member);
  if (options.format.empty() ? other_system : options.format != "native") {
    opened.step.view = std::move(member.view);
    CAIRN_ASSIGN_OR_RETURN(opened.foreign, OpenForeign(*opened.step.view, member.path, options));
  } else {
    CAIRN_ASSIGN_OR_RETURN(opened.step, OpenStep(std::move(member), argument));
  }
  return opened;
}

Result<OpenedSource> OpenAsItIs(const std::string& given, const OpenOptions& options) {
  const MemberName name = SplitMemberName(FileSystem::Posix(), given);
  if (!name.selector.empty()) return OpenArchived(name, given, options);
  CAIRN_ASSIGN_OR_RETURN(const std::string argument, StepPath(FileSystem::Posix(), given));
  OpenedSource opened;
  if (options.format != "native" && (!options.format.empty() || IsForeign(argument))) {
    CAIRN_ASSIGN_OR_RETURN(opened.foreign, OpenForeign(FileSystem::Posix(), argument, options));
  } else {
    CAIRN_ASSIGN_OR_RETURN(opened.step, OpenCkpt(argument));
  }
  return opened;
}

// As the readers of other systems do it when they make a step.
void LeaveOutFieldsOf(StepReader& step, const std::vector<std::string>& allow) {
  nlohmann::json model = step.manifest().model;
  const std::vector<std::string> history = LeaveOutFields(allow, model);
  if (!history.empty()) step.Redescribe(std::move(model), history);
}

}  // namespace

Result<OpenedStep> OpenCkpt(const std::string& argument) {
  FileSystem& fs = FileSystem::Posix();
  const MemberName name = SplitMemberName(fs, argument);
  if (!name.selector.empty()) {
    CAIRN_ASSIGN_OR_RETURN(OpenedMember member, OpenMemberOf(name));
    return OpenStep(std::move(member), argument);
  }
  OpenedStep opened;
  CAIRN_ASSIGN_OR_RETURN(const std::string path, StepPath(fs, argument));
  CAIRN_ASSIGN_OR_RETURN(opened.reader, OpenCheckpoint(fs, IterationSavedByCairn(fs, path), PrintPassedOver));
  return opened;
}

bool IsForeign(const std::string& argument) {
  FileSystem& fs = FileSystem::Posix();
  return IterationSavedByCairn(fs, argument) == argument &&
         std::ranges::any_of(Formats(), [&](const Format& format) { return format.matches(fs, argument); });
}

Result<OpenedSource> OpenAnyCkpt(const std::string& argument, const OpenOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(OpenedSource opened, OpenAsItIs(argument, options));
  if (opened.step.reader) LeaveOutFieldsOf(*opened.step.reader, options.allow);
  if (options.config.empty()) return opened;
  if (opened.source().manifest().model.contains("architecture")) {
    PrintProblem(fmt::format("note: {} says itself which model it is; --config is not used for it",
                             opened.source().name()));
    return opened;
  }
  std::unique_ptr<CheckpointSource> source = std::move(opened.foreign);
  if (!source) source = std::move(opened.step.reader);
  CAIRN_ASSIGN_OR_RETURN(opened.foreign, ReadByConfig(FileSystem::Posix(), std::move(source), options));
  return opened;
}

Result<OpenedSource> OpenWeights(const std::string& argument, const OpenOptions& options) {
  Result<OpenedSource> opened = OpenAnyCkpt(argument, options);
  if (opened.ok()) return opened;
  OpenOptions without = options;
  without.allow.emplace_back("optimizer");
  Result<OpenedSource> weights = OpenAnyCkpt(argument, without);
  if (!weights.ok()) return opened;
  const std::string why = opened.status().message();
  PrintProblem("note: the optimizer's state is left behind: " + why.substr(0, why.find("; --allow ")));
  return weights;
}

}  // namespace cairn
