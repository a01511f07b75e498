// The arguments of a training as its program pickles them.
#pragma once

#include <nlohmann/json.hpp>

#include "ckpt/base/dtype.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {

// An argparse.Namespace with these attributes, and params_dtype.
void EmitNamespace(PickleEmitter& pickle, const nlohmann::json& attributes, Dtype params_dtype);

}  // namespace cairn
