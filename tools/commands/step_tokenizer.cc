#include "tools/commands/step_tokenizer.h"

#include "tools/cli/output.h"

namespace cairn {

FileCopies TokenizerForStep(FileSystem& fs, const CheckpointSource& source) {
  Result<FileCopies> files = TokenizerOf(fs, source.directory());
  if (files.ok()) return *std::move(files);
  PrintProblem(fmt::format("note: the tokenizer does not come along: {}", files.status().message()));
  return {};
}

}  // namespace cairn
