#include "tools/source/step_tokenizer.h"

#include "tools/cli/output.h"

namespace cairn {

namespace {

// Only copied files count as read, not a config.json that was searched for code.
FileCopies Copied(const OpenedSource& opened, FileCopies files) {
  for (const auto& [name, from] : files)
    if (opened.log) opened.log->Add(from.path);
  return files;
}

}  // namespace

Result<FileCopies> TokenizerOf(const OpenedSource& opened) {
  FileSystem& fs = opened.step.fs();
  CAIRN_ASSIGN_OR_RETURN(FileCopies files, TokenizerOf(fs, opened.source().directory()));
  if (opened.log && fs.List(opened.path).ok()) {
    CAIRN_ASSIGN_OR_RETURN(FileCopies beside, TokenizerOf(fs, opened.path));
    files.merge(beside);
  }
  return Copied(opened, std::move(files));
}

Result<FileCopies> LicenceAndCode(const OpenedSource& opened) {
  CAIRN_ASSIGN_OR_RETURN(FileCopies files, LicenceAndCode(opened.step.fs(), opened.source().directory()));
  return Copied(opened, std::move(files));
}

FileCopies TokenizerForStep(const OpenedSource& opened) {
  Result<FileCopies> files = TokenizerOf(opened);
  if (files.ok()) return *std::move(files);
  PrintProblem(fmt::format("note: the tokenizer is not copied: {}", files.status().message()));
  return {};
}

}  // namespace cairn
