// A CKPT argument, opened: a step directory, a run directory (its newest step that opens), or STORE:RUN@STEP.
#pragma once

#include <memory>
#include <string>

#include "ckpt/step_reader.h"

namespace cairn {

// A step and the file system it is read through. Movable; `fs` outlives `reader`.
struct OpenedStep {
  std::unique_ptr<FileSystem> view;  // of an archived step; null: the real one
  std::unique_ptr<StepReader> reader;

  FileSystem& fs() const { return view ? *view : FileSystem::Posix(); }
};

// Steps that are passed over because they do not open are told on stderr.
// Errors: NotFound, Corrupt, NotSupported naming the path.
Result<OpenedStep> OpenCkpt(const std::string& argument);

}  // namespace cairn
