#include "tools/open_ckpt.h"

#include <algorithm>

#include "ckpt/run_dir.h"
#include "tools/archive/restore.h"
#include "tools/archive/store.h"
#include "tools/output.h"

namespace cairn {

Result<OpenedStep> OpenCkpt(const std::string& argument) {
  FileSystem& fs = FileSystem::Posix();
  const MemberName name = SplitMemberName(fs, argument);
  OpenedStep opened;
  if (name.selector.empty()) {
    CAIRN_ASSIGN_OR_RETURN(opened.reader, OpenCheckpoint(fs, argument, [](const Status& skipped) {
                             PrintProblem("passed over: " + skipped.message());
                           }));
    return opened;
  }
  CAIRN_ASSIGN_OR_RETURN(const ArchiveMember member, FindMember(fs, name.store, name.selector));
  const std::string tar = JoinPath(name.store, member.tar);
  CAIRN_ASSIGN_OR_RETURN(opened.view, OpenMember(fs, name.store, member.tar));
  CAIRN_ASSIGN_OR_RETURN(opened.reader, StepReader::Open(*opened.view, tar));
  return opened;
}

bool IsForeign(const std::string& argument) {
  return std::ranges::any_of(
      Formats(), [&](const Format& format) { return format.matches(FileSystem::Posix(), argument); });
}

Result<OpenedSource> OpenAnyCkpt(const std::string& argument, const OpenOptions& options) {
  OpenedSource opened;
  if (options.format != "native" && (!options.format.empty() || IsForeign(argument))) {
    CAIRN_ASSIGN_OR_RETURN(opened.foreign, OpenForeign(FileSystem::Posix(), argument, options));
  } else {
    CAIRN_ASSIGN_OR_RETURN(opened.step, OpenCkpt(argument));
  }
  return opened;
}

}  // namespace cairn
