// Headers that are JSON: safetensors', and our own manifest.
#include "ckpt/manifest.h"
#include "convert/safetensors_header.h"
#include "tests/fuzz/fuzz_target.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() {
  Manifest manifest;
  manifest.run = "0123456789abcdef0123456789abcdef";
  manifest.step = 100;
  manifest.files = {{"shard-00000.h5", 4096, {}}, {"index.h5", 8192, {}}};
  return {
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
      R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,18446744073709551615]}})",
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      std::string(2000, '['), EncodeManifest(manifest)};
}

std::vector<std::string> FuzzWords() {
  return {"{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"",
          "\"dtype\":",
          "\"shape\":",
          "\"data_offsets\":",
          "\"F32\"",
          "\"BF16\"",
          "-1",
          "1e400",
          "18446744073709551616",
          "null",
          "\\u0000",
          "\"__metadata__\"",
          "\"files\":",
          "\"step\":",
          "\xff"};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  constexpr uint64_t kFileBytes = 1 << 20;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto header = ParseSafetensorsHeader(text, 8 + size, kFileBytes + size + 8); header.ok())
    for (const SafetensorsTensor& tensor : header->tensors)
      FuzzCheck(tensor.bytes <= kFileBytes && tensor.file_offset - 8 - size <= kFileBytes - tensor.bytes);
  if (const auto manifest = DecodeManifest(text); manifest.ok()) FuzzCheck(EncodeManifest(*manifest) == text);
  return 0;
}
