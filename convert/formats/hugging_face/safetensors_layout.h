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

struct SafetensorsLayout {
  std::string header;             // with its length before it, padded to a multiple of 8
  std::vector<uint64_t> offsets;  // of each entry, as given, from the start of the file
  uint64_t file_bytes = 0;
};

// Pure; of `entries` it uses name, dtype and shape. Errors: InvalidArgument (a name twice, or one that the
// format reserves; a header over the format's limit).
Result<SafetensorsLayout> LayOutSafetensors(const std::vector<StoredArray>& entries,
                                            const SafetensorsMetadata& metadata);

// The metadata's key for the fingerprint of the tensors that were read, which is known last.
inline constexpr const char* kSourceFingerprintKey = "cairn.source_fingerprint";

// A file as a container: storage number i holds entry number i, and the header is around them. If
// `metadata` has kSourceFingerprintKey, its value is filled in at the end. Errors: those of
// LayOutSafetensors.
Result<std::unique_ptr<StorageLayout>> MakeSafetensorsStorages(std::vector<StoredArray> entries,
                                                               SafetensorsMetadata metadata);

}  // namespace cairn
