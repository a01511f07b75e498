// A CKPT argument, opened: a step directory or RUN@STEP, a run directory (its newest step that opens; of a
// run that cairn.megatron saved, the step in the iteration that its tracker names), STORE:RUN@STEP, or
// another system's checkpoint.
#pragma once

#include <memory>
#include <string>

#include "ckpt/step/step_reader.h"
#include "convert/formats/systems.h"
#include "tools/place/place.h"
#include "tools/source/read_log.h"

namespace cairn {

// A step and the file system it is read through. Movable; `fs` outlives `reader`.
struct OpenedStep {
  FileSystem* outside = nullptr;     // that the argument was looked for in
  std::unique_ptr<FileSystem> view;  // of an archived step; null: it lies outside
  std::unique_ptr<StepReader> reader;

  FileSystem& fs() const { return view ? *view : *outside; }
};

// A native step, or a checkpoint of another system: both in a directory or in an archive.
struct OpenedSource {
  OpenedStep step;                         // its reader is null if the format is foreign
  std::string path;                        // of another system's checkpoint, or of a step around it
  const System* system = nullptr;          // that wrote it; null of a native step
  std::unique_ptr<ReadLog> log;            // of its files; null of a native step
  std::unique_ptr<ForeignSource> foreign;  // null if it is native and not read by a config.json

  FileSystem& fs() const { return log ? *log : step.fs(); }
  CheckpointSource& source() const {
    return foreign ? static_cast<CheckpointSource&>(*foreign) : *step.reader;
  }
  // Where config.json and tokenizer may be: beside the weights, in their step, or where a program keeps them.
  std::vector<std::string> DirectoriesOfConfig() const;
  // The files next to another system's checkpoint that were neither read nor copied (ReadLog::Unread).
  std::vector<std::string> LeftBehind() const;
};
// Steps that do not open are skipped, with a note; with the format "native" no other is taken.
// `options.config` is used only if the source does not describe its model; else a note says it was ignored.
// Errors: NotFound, Corrupt, NotSupported naming the path.
Result<OpenedSource> OpenAnyCkpt(FileSystem& fs, const std::string& argument,
                                 const OpenOptions& options = {});
Result<OpenedSource> OpenPlace(FileSystem& fs, const Place& place, const OpenOptions& options);

// The same for a result without an optimizer: if the optimizer's state has a form that is not read, the
// source is read without it, and a note says why; if that fails, too, the error is of the weights. A file of
// it that is missing or damaged is an error all the same. If `cast` is another type than that of 16-bit
// weights, their masters are what is published: then the optimizer's state is left behind only if `options`
// allow it.
Result<OpenedSource> OpenWeights(FileSystem& fs, const std::string& argument, const OpenOptions& options,
                                 std::optional<Dtype> cast = {});

}  // namespace cairn
