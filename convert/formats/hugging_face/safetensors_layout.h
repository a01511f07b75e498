// Lays out one safetensors file: u64 length of the header, the header as JSON, then the tensors without gaps.
//
// Order of header and data is the reference writer's: wide types first, then by name. Source: the format's
// README (huggingface/safetensors); https://huggingface.co/docs/safetensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "convert/foreign/stored_array.h"
#include "convert/torch/storage_layout.h"

namespace cairn {

// Text only; "format": "pt" is added, since some loaders refuse a file without it.
using SafetensorsMetadata = std::map<std::string, std::string>;

// The metadata's keys for the fingerprint of the tensors that were read, and for how far they are from what
// was quantized, which are only known at the end.
inline constexpr const char* kSourceFingerprintKey = "cairn.source_fingerprint";
inline constexpr const char* kQuantizationErrorKey = "cairn.quantization_error";

// A file as a container: storage number i holds entry number i, and the header is around them. Of `entries`
// it uses name, dtype and shape. If `metadata` has those keys, their values are filled in at the end.
// Errors: InvalidArgument (a name twice, or one that the format reserves; a header over the format's limit).
Result<std::unique_ptr<StorageLayout>> MakeSafetensorsStorages(std::vector<StoredArray> entries,
                                                               SafetensorsMetadata metadata);

}  // namespace cairn
