// Whether a step's manifest describes the tensors in its catalog: digests show that neither was changed by
// chance, not that they belong together.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/manifest.h"
#include "ckpt/model/tensor.h"
#include "ckpt/step/verify.h"

namespace cairn {

// Contradictions between the name of the step's directory, the manifest's step and state, its model, its
// topology and its tensors. A fact that the manifest lacks is not checked. If the architecture is unknown,
// only the layers are counted. Each problem names the manifest.
std::vector<Problem> CheckModel(const std::string& step_directory, const Manifest& manifest,
                                const std::vector<TensorEntry>& tensors);

}  // namespace cairn
