// model.safetensors.index.json and pytorch_model.bin.index.json: JSON that names tensors and files.
#include "convert/formats/hugging_face/weight_files.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() { return {}; }

std::vector<std::string> FuzzWords() {
  return JsonWords({"\"weight_map\":", "\"metadata\":", "\"a\":\"model-00001-of-00002.safetensors\"",
                    "\"../x\"", "\"/etc/passwd\"", "\"..\"", "\\ud800"});
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  MemoryFileSystem fs;
  fs.files["index.json"] = TextOf(data, size);
  const auto index = ReadWeightIndex(fs, "index.json");
  if (!index.ok()) {
    FuzzCheck(!index.status().message().empty());
    return 0;
  }
  FuzzCheck(!CheckAgainstIndex("index.json", *index, {}).ok());
  std::vector<std::pair<std::string, std::string>> found(index->file_of.begin(), index->file_of.end());
  for (const auto& [tensor, file] : found)
    FuzzCheck(!file.empty() && file.find('/') == file.npos && file != "..");
  FuzzCheck(CheckAgainstIndex("index.json", *index, found).ok());
  found.push_back(found[0]);
  FuzzCheck(!CheckAgainstIndex("index.json", *index, found).ok());
  return 0;
}
