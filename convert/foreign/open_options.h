// How the files of another system are read: what the user asks for and allows. The table of all formats is
// convert/formats/systems.h.
#pragma once

#include <functional>
#include <optional>
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
  std::vector<std::string> allow;  // globs of stored names without a place, to leave out
  Replicas replicas = Replicas::kStrict;
  std::string config;  // config.json of the model, or its directory, if names alone tell which it is
  // A model has the names of transformers' memory, for a training. Else those that a table describes have
  // canonical names, and others, with `config`, those of their files.
  bool names_in_memory = false;
  uint64_t vocab_size = 0;  // true size of a padded vocabulary, if no file has it; 0: as in the files
  // An optimizer whose states have numbers or unknown names is carried as it is, unless `config` names the
  // parameters. False: it is refused, for a target that has no place for such.
  bool keep_unread = true;
  // Leaves out tensors of types that Cairn does not support (complex64, uint16): a manifest's state has their
  // names and types as kTypesNotHeld.
  bool skip_types = false;
  // Weights of few bits with scales for their blocks (block_scaled.h) are read as this type: fp32, bf16 or
  // fp16. Nothing: as they are stored, and all tensors of the model under their own names.
  std::optional<Dtype> dequantized = Dtype::kBF16;
  // Gets a line about each thing that was passed over or not used; nobody, if it is empty.
  std::function<void(const std::string&)> note;
};

// For the reader of a format, with the names that it left out because they were allowed. OpenForeign() puts
// those into the manifest's history.
struct ReaderOptions : OpenOptions {
  std::set<std::string> allowed_names;
};

// True if one of `options.allow` fits a stored name, "optimizer" or "args.NAME", and records the name: call
// it only for values that will be left out.
bool IsAllowed(ReaderOptions& options, const std::string& name);

// The line of the history for what was left out, or is missing.
std::string AllowedLine(const std::string& name);
// Begins a line of the history; readers say after it why.
inline constexpr std::string_view kOptimizerLeftOut = "the optimizer's state was left out";

// For an optimizer's state that cannot be read because of `why`, without which the weights are still useful:
// if "optimizer" is allowed, notes it in the history. Errors: `why`, and how to allow it.
Status LeaveOutOptimizer(ReaderOptions& options, Manifest& manifest, const Status& why);

}  // namespace cairn
