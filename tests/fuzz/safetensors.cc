// safetensors: the length, the header and its description of the data.
#include "convert/formats/hugging_face/safetensors_header.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() { return {}; }

std::vector<std::string> FuzzWords() {
  return JsonWords({"\"dtype\":", "\"shape\":", "\"data_offsets\":", "\"F32\"", "\"BF16\"", "\"F4\"",
                    "4294967296", "18446744073709551615", "\"__metadata__\":{\"a\":\"b\"}"});
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  MemoryFileSystem fs;
  const std::string_view bytes = fs.files["x.safetensors"] = TextOf(data, size);
  const auto check = [&](const Result<SafetensorsHeader>& header, uint64_t file_bytes) {
    if (!header.ok()) return FuzzCheck(!header.status().message().empty());
    for (const StoredArray& tensor : header->tensors) {
      const uint64_t offset = tensor.extents[0].file_offset;
      FuzzCheck(offset <= file_bytes && tensor.bytes() <= file_bytes - offset);
    }
  };
  check(ReadSafetensorsHeader(fs, "x.safetensors"), size);
  // Its header as if the length were right: up to the last brace, the rest is data.
  const size_t end = bytes.rfind('}');
  if (size <= 8 || end == bytes.npos || end < 8) return 0;
  check(ParseSafetensorsHeader(bytes.substr(8, end - 7), end + 1, size), size);
  return 0;
}
