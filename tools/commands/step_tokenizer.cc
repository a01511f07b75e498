#include "tools/commands/step_tokenizer.h"

#include "tools/cli/output.h"

namespace cairn {

Result<FileCopies> TokenizerOf(const OpenedSource& opened) {
  FileSystem& fs = opened.fs();
  CAIRN_ASSIGN_OR_RETURN(FileCopies files, TokenizerOf(fs, opened.source().directory()));
  if (opened.log && fs.List(opened.path).ok()) {
    CAIRN_ASSIGN_OR_RETURN(FileCopies beside, TokenizerOf(fs, opened.path));
    files.merge(beside);
  }
  return files;
}

FileCopies TokenizerForStep(const OpenedSource& opened) {
  Result<FileCopies> files = TokenizerOf(opened);
  if (files.ok()) return *std::move(files);
  PrintProblem(fmt::format("note: the tokenizer does not come along: {}", files.status().message()));
  return {};
}

}  // namespace cairn
