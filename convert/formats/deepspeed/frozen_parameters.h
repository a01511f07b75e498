// Parameters that a DeepSpeed training does not change. They are in no optimizer: whole ones lie beside the
// module (ZeRO 1 and 2), or each data parallel rank has a piece (ZeRO 3).
#pragma once

#include <vector>

#include "convert/foreign/stored_builder.h"
#include "convert/formats/deepspeed/model_file.h"

namespace cairn {

// Those of one model parallel rank. `pieces` are the model states of its data parallel ranks that have a
// piece each, in order. Errors: NotFound and Corrupt naming file and parameter.
Result<std::vector<StoredArray>> ReadFrozen(const std::vector<const TorchFile*>& pieces,
                                            StoredBuilder& builder);

}  // namespace cairn
