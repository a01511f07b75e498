// The formats of Cairn and of other systems, one row each: how its files are recognised and read, and how
// they are written. How trainers name their steps: convert/foreign/layouts.h.
//
// convert, strip, seal, ls, archive, --from, --to and their help read this one table. To add a format, write
// its functions in a new folder and add its row in systems.cc.
//
// For every verb Recognise() decides which files a path means, and NamedStepOf() which directories are steps.
// A directory may hold two checkpoints: the Trainer of transformers writes model.safetensors beside
// DeepSpeed's files. It may also be one level too high: OLMo-core keeps a step's tensors in model_and_optim,
// NeMo in weights, verl in actor.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/families/foreign_model.h"
#include "convert/foreign/expert_census.h"
#include "convert/foreign/layouts.h"
#include "convert/foreign/open_options.h"
#include "convert/foreign/write_options.h"

namespace cairn {

struct System {
  std::string_view name;        // as --from and --to take it
  std::string_view reads = {};  // one line for `cairn convert --help`; empty: --from does not take it
  std::string_view note = {};   // a note for the user who reads such a checkpoint
  // True if `path` (a directory or a file) looks like it, from names alone or the first bytes of a file.
  // Null: no files of another system.
  bool (*matches)(FileSystem& fs, const std::string& path) = nullptr;
  // Errors: Corrupt, NotFound, NotSupported naming the file and what to do.
  Result<std::unique_ptr<ForeignSource>> (*open)(FileSystem& fs, const std::string& path,
                                                 ReaderOptions& options) = nullptr;
  // What is known of a checkpoint that `open` refuses. Null: nothing. Errors: as above.
  Result<StoredNames> (*names)(FileSystem& fs, const std::string& path) = nullptr;
  bool own_names = false;        // of the program that wrote it: a config.json may lie beside the file
  bool training = false;         // a training's own files; else weights for use, which may be next to them
  std::string_view covers = {};  // a more general format that recognises the same files
  std::string_view writes = {};  // one line for `cairn convert --help`; empty: --to does not take it
  // Reads nothing but the source's catalog. Errors: InvalidArgument, NotSupported if the format cannot hold
  // it. Null: strip writes it, if anything does.
  Result<TargetFiles> (*plan)(const CheckpointSource& source, const TargetOptions& options) = nullptr;
  // The form of a release's weights, if strip writes the format. Errors: as above.
  Result<ForeignModel> (*release)(const Model& model, Dtype dtype,
                                  const std::vector<ParameterSpec>& parameters) = nullptr;
  bool experts = false;    // `plan` takes tensors of experts
  bool any_names = false;  // and those of any names, not only canonical ones
  int most_zero = 3;       // the largest ZeRO stage that `plan` takes
  int most_zero_in_pipeline = 3;
  bool every_name = false;       // a release has shared parameters under each of their names
  bool has_tokenizer = false;    // programs that use its weights look for a tokenizer beside them
  std::string_view reader = {};  // the row that reads back what was written; empty: a step of Cairn is
  // If a directory is a step whatever its name is: its number, as its files say it. Null: only names tell
  // (layouts.h).
  std::optional<int64_t> (*step_of)(FileSystem& fs, const std::string& directory) = nullptr;
  std::span<const std::string_view> sets = {};  // of files, as patterns (file_sets.h): none may be missing
  // Checks from headers and indices that `directory`, whose files are `names`, has the files that they name.
  // Errors: NotFound, Corrupt naming the file. Null: only `open` checks.
  Status (*check_files)(FileSystem& fs, const std::string& directory,
                        const std::vector<std::string>& names) = nullptr;

  bool is_native() const { return release && reader.empty(); }  // it is Cairn's own
};

// In the order of recognition: the more specific before the more general.
std::span<const System> Systems();
// Null if no row has this name.
const System* FindSystem(std::string_view name);

// Adds the rows in the *.json of a directory, before the built-in ones. Errors: NotFound if it has none;
// InvalidArgument naming the file and the key, or a format that no row has.
Status AddLayouts(FileSystem& fs, const std::string& directory);

// A directory that is a step of another system.
struct NamedStep {
  const TrainerLayout* layout = nullptr;  // null: of a system whose steps have no names of their own
  int64_t step = 0;
  bool named = false;  // its name alone says so
};
// Only by the name: "global_step2", "iter_0000100", "checkpoint-500".
std::optional<NamedStep> ParseForeignStep(std::string_view name,
                                          std::span<const TrainerLayout> layouts = TrainerLayouts());
// By its name, which may also have "step=187" in it, as Lightning's and NeMo's have; else by its files:
// DeepSpeed takes any name for a tag.
std::optional<NamedStep> NamedStepOf(FileSystem& fs, const std::string& directory);

// True if `names`, the entries of a directory, are those of a step or a run of Cairn, even of one without a
// committed step.
bool IsOfCairn(const std::vector<std::string>& names);

struct Recognised {
  const System* system = nullptr;
  std::string path;                // of the checkpoint: the one that was asked for, or one in it
  std::vector<std::string> notes;  // why it is `path`, and other checkpoints in the same place
  bool placed = false;             // where a program is known to keep it; `notes` says so
};

// The checkpoint at `path`. If no format recognises a directory, the only directory or file of weights in it
// that one recognises. A training is read before weights for use. Errors: NotFound if there is none, naming
// the formats; NotSupported naming a format that is not read; InvalidArgument if there are several, naming
// them.
Result<Recognised> Recognise(FileSystem& fs, const std::string& path,
                             std::span<const System> systems = Systems());
// True if a format recognises what is at `path` itself, also a run whose tracker leads to a step.
bool IsCheckpoint(FileSystem& fs, const std::string& path);
// All of them: one at `path` itself, or those in it, perhaps none. Errors: as above.
Result<std::vector<Recognised>> RecogniseAll(FileSystem& fs, const std::string& path,
                                             std::span<const System> systems = Systems());
// The same of a step: also the checkpoints beside the one that a program is known to keep, as a critic's
// beside a policy. Errors: as above.
Result<std::vector<Recognised>> RecogniseStep(FileSystem& fs, const std::string& path);

// In the format that `options` name, else in the recognised one. Errors: those of Recognise() and
// System::open.
Result<std::unique_ptr<ForeignSource>> OpenForeign(FileSystem& fs, const std::string& path,
                                                   const OpenOptions& options = {},
                                                   std::span<const System> systems = Systems());

}  // namespace cairn
