// Files of weights under Hugging Face's names, read as canonical parameters, or under their own names.
//
// Independent of the container: a reader lists the tensors of its files (safetensors, a torch pickle), and
// gets a ForeignSource.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "convert/foreign/account.h"
#include "convert/foreign/open_options.h"

namespace cairn {

// Files of weights, and what a reader found in them.
struct WeightFiles {
  std::string directory;
  std::vector<std::string> names;  // relative to it
  std::vector<StoredArray> tensors;
  std::map<std::string, std::string> metadata;  // of the first safetensors file
  Account account{};                            // of all of them
  std::string slice = {};                       // a file that has only one rank's part of each tensor

  // For messages: the one file, or the directory of all.
  std::string Place() const { return names.size() == 1 ? JoinPath(directory, names[0]) : directory; }
};

// A Hugging Face directory, as config.json and generation_config.json beside the files describe it. A model
// of a family without a table, or with another head, keeps its names. Known buffers are left out, and so are
// copies of tied embeddings, which must hold the same bytes. The run is made from the model and the first
// bytes of each tensor, so that it does not depend on how the tensors are spread over files; the step is 0.
// Errors: those of ReadByConfig (config_source.h); NotSupported naming a tensor of a type that is not held.
Result<std::unique_ptr<ForeignSource>> OpenStoredModel(FileSystem& fs, WeightFiles files,
                                                       const OpenOptions& options);

// The same for a model of unknown family (an adapter, say): every tensor under its own name, cut
// nowhere. `model` goes into the manifest. Errors: NotSupported naming a tensor of a type that is not held.
Result<std::unique_ptr<ForeignSource>> OpenUnderOwnNames(FileSystem& fs, WeightFiles files, Model model,
                                                         const OpenOptions& options);

// The text that the run of a model without one is made from, beside its tensors.
std::string RunTextOf(const Model& model);

}  // namespace cairn
