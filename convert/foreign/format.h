// What a format is to the rest of the program: how its files are recognised and opened, and what the user
// lets pass while they are read. The table of all formats is convert/formats/formats.h.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/file_system.h"
#include "convert/foreign/foreign_source.h"

namespace cairn {

// Replicas of a tensor that should be equal and are not.
enum class Replicas { kStrict, kFirst, kMean };  // refuse; take the first one; average in fp32

inline constexpr const char* kTypesNotHeld = "types_not_held";

struct OpenOptions {
  std::string format;              // empty: recognised from the files
  std::vector<std::string> allow;  // globs of stored names that have no place here and may be left out
  Replicas replicas = Replicas::kStrict;
  std::string config;       // config.json of the model, or its directory, where names alone tell which it is
  uint64_t vocab_size = 0;  // true size of a padded vocabulary, where no file says it; 0: what the files say
  // Leaves out tensors of types that Cairn does not hold (complex64, uint16): a manifest's state has their
  // names and types as kTypesNotHeld.
  bool skip_types = false;
  // What IsAllowed() was true of. OpenForeign() makes one, and puts the names into the manifest's history.
  std::shared_ptr<std::set<std::string>> let_pass;
};

// Whether one of `options.allow` fits a stored name, or what else may be let pass: "optimizer", "args.NAME".
// Asked only where what it is asked about is then left out.
bool IsAllowed(const OpenOptions& options, const std::string& name);

// Weights are of use without the optimizer's state that cannot be read because of `why`: where "optimizer" is
// allowed, notes it in the history. Errors: `why`, and how to allow it.
Status LeaveOutOptimizer(const OpenOptions& options, Manifest& manifest, const Status& why);

struct Format {
  std::string_view name;         // as --from and --to take it
  std::string_view description;  // one line for `cairn convert --help`
  // Whether `path` (a directory or a file) looks like it, from names alone or the first bytes of a file.
  bool (*matches)(FileSystem& fs, const std::string& path);
  // Errors: Corrupt, NotFound, NotSupported naming the file and what to do.
  Result<std::unique_ptr<ForeignSource>> (*open)(FileSystem& fs, const std::string& path,
                                                 const OpenOptions& options);
  bool training = false;         // a training's own files; else weights for use, which may lie beside them
  std::string_view covers = {};  // a more general format that recognises the same files
};

}  // namespace cairn
