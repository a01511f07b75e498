// Whether a step's manifest is about the tensors that its catalog lists: a digest says that neither was
// changed by chance, not that they belong together.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/manifest.h"
#include "ckpt/model/tensor.h"
#include "ckpt/step/verify.h"

namespace cairn {

// Contradictions between the name of the step's directory, the manifest's step and state, its model, its
// topology and its tensors. What a manifest does not say is not held against it, and of an architecture that
// no table knows only the layers are counted. Each problem names the manifest.
std::vector<Problem> CheckModel(const std::string& step_directory, const Manifest& manifest,
                                const std::vector<TensorEntry>& tensors);

}  // namespace cairn
