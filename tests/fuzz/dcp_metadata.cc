// .metadata of torch.distributed.checkpoint: a pickle, and the chunks and files that it names.
#include "ckpt/model/layout.h"
#include "convert/formats/dcp/dcp_index.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() { return {}; }

std::vector<std::string> FuzzWords() {
  const auto text = [](const std::string& word) { return "X" + Little(word.size(), 4) + word; };
  return {text("state_dict_metadata"),
          text("planner_data"),
          text("storage_data"),
          text("relative_path"),
          text("__0_0.distcp"),
          text("../x"),
          text("offset"),
          text("length"),
          text("offsets"),
          text("sizes"),
          text("size"),
          text("chunks"),
          text("fqn"),
          text("index"),
          "ctorch.distributed.checkpoint.metadata\nMetadataIndex\n",
          "ctorch.distributed.checkpoint.metadata\nChunkStorageMetadata\n",
          "ctorch.distributed.checkpoint.metadata\nTensorStorageMetadata\n",
          "ctorch\nSize\n",
          ")\x81",
          "}(",
          "ub",
          "\x85R",
          "]",
          "a",
          "e",
          "h\1",
          "q\1",
          "\x94",
          "K\1",
          "\x8a\x08" + Little(INT64_MAX, 8)};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  MemoryFileSystem fs;
  fs.files["ckpt/.metadata"] = TextOf(data, size);
  const auto index = ReadDcpIndex(fs, "ckpt");
  if (!index.ok()) {
    FuzzCheck(!index.status().message().empty());
    return 0;
  }
  const auto check = [](const DcpItem& item) {
    FuzzCheck(IsPlainFileName(item.file) && item.where.begin <= item.where.end &&
              item.where.end <= INT64_MAX);
  };
  uint64_t chunks = 0;
  for (const DcpTensor& tensor : index->tensors) {
    chunks += tensor.chunks.size();
    for (const DcpChunk& chunk : tensor.chunks) check(chunk.item);
  }
  for (const DcpBytes& bytes : index->bytes) check(bytes.item);
  FuzzCheck(chunks <= size);  // no tensor comes from nothing
  return 0;
}
