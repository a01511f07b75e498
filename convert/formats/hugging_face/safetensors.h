// A directory, or a file, of safetensors: under canonical names, as `cairn strip --format safetensors` writes
// them, or under names of an unknown model, which are kept (an adapter of peft).
//
// Its headers carry the manifest's model (`cairn.model`) and how a topology cuts each parameter
// (`cairn.parameters`: [[name, dimension that TP cuts or -1, unit, padding, layer, tied]]; a row of experts
// ends with their cuts, [[axis, dimension, unit, padding]], axes as in catalogs), so that it reads back as a
// checkpoint of any architecture.
#pragma once

#include <map>

#include "ckpt/families/foreign_model.h"
#include "ckpt/model/tensor.h"
#include "convert/foreign/open_options.h"

namespace cairn {

// Safetensors without config.json.
bool IsSafetensors(FileSystem& fs, const std::string& path);

// Errors: NotSupported naming a tensor of an unsupported type; those of the headers.
Result<std::unique_ptr<ForeignSource>> OpenSafetensors(FileSystem& fs, const std::string& path,
                                                       ReaderOptions& options);

// CanonicalModel(), with the metadata above.
Result<ForeignModel> SafetensorsRelease(const Model& model, Dtype dtype,
                                        const std::vector<ParameterSpec>& parameters);

// The text of `cairn.parameters`.
std::string EncodeParameters(const std::vector<ParameterSpec>& parameters);
// The inverse, given the tensors' shapes by name. Errors: Corrupt; NotFound naming a tensor that has no
// shape.
Result<std::vector<ParameterSpec>> DecodeParameters(const std::string& text,
                                                    const std::map<std::string, Dims, std::less<>>& shapes);

}  // namespace cairn
