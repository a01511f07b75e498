// The tokenizer of a model: files that lie beside its weights, with its licence and its code. A native step
// has its own copy of them, listed in its manifest after the index: they move with the step. Steps of earlier
// versions have none; their tokenizer may be in RUN/tokenizer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ckpt/io/file_copies.h"
#include "ckpt/step/seal.h"

namespace cairn {

// The directory of tokenizer files in a run that an earlier Cairn made.
inline constexpr const char* kRunTokenizerDir = "tokenizer";

// The files of a tokenizer or processor in `directory`, by their names in it: "tokenizer.json",
// "additional_chat_templates/rag.jinja". A release must not carry files from elsewhere on this machine.
// Errors: NotFound if there are none; InvalidArgument if one is a link out of the model's own directory, or
// is not a file.
Result<FileCopies> TokenizerFiles(FileSystem& fs, const std::string& directory);

bool HasTokenizer(const FileCopies& files);

// The licence of a model, and the code that its `auto_map` names; often none. Errors: InvalidArgument as
// above.
Result<FileCopies> LicenceAndCode(FileSystem& fs, const std::string& directory);

// The files in `directory` that fit one of the globs. Errors: InvalidArgument as above.
Result<FileCopies> FilesLike(FileSystem& fs, const std::string& directory,
                             std::span<const char* const> globs);

// Licence, code and tokenizer next to a checkpoint (in a native step: its own), or the tokenizer of its run;
// often none. Errors: InvalidArgument as above.
Result<FileCopies> TokenizerOf(FileSystem& fs, const std::string& checkpoint);

// A file of a step other than shards and index, in memory. Steps are flat: a "/" in a name is "@".
struct BesideFile {
  std::string name;
  std::string bytes;
};

// Their names in a step.
std::vector<std::string> NamesInStep(const FileCopies& files);
// Errors: NotSupported if a file is larger than 256 MiB.
Result<std::vector<BesideFile>> ReadCopies(const FileCopies& files);

// Writes the files into the directory of a step whose seal is not written yet, and lists them in its
// manifest. Replaces files that a killed run left.
Status WriteBeside(FileSystem& fs, const std::string& directory, std::span<const BesideFile> files,
                   StepSeal& seal);

}  // namespace cairn
