// Parameters that a model has under a second name: tied embeddings of a model that keeps its own names.
//
// A checkpoint holds them once, under the first name; the manifest's state lists the others as
// `shared_params` (DeepSpeed's word), so that programs that ask for every name find it written again.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/source.h"

namespace cairn {

struct SecondName {
  ParameterSpec spec;  // under that name
  std::string first;
};

// Names that the checkpoint holds anyway are left out.
std::vector<SecondName> SecondNames(const Manifest& manifest, const TensorTable& table);

}  // namespace cairn
