// torch.save's files whole: the zip of records, the older stream and bare pickles, and where each of their
// tensors lies.
#include "convert/torch/torch_file.h"

#include "convert/foreign/stored_builder.h"
#include "convert/torch/tensor_walk.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() { return {}; }

std::vector<std::string> FuzzWords() {
  return PickleWords({"ctorch\nHalfStorage\n", "\x8a\xff",
                      "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "M\xe9\x03.", "PK\3\4", "PK\1\2",
                      "PK\5\6", "PK\6\6", "PK\6\7", "\xff\xff\xff\xff", "\xff\xff\xff\x7f", "data.pkl"});
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  MemoryFile file(TextOf(data, size));
  const auto opened = TorchFile::Read(file, {0, size});
  if (!opened.ok()) {
    FuzzCheck(!opened.status().message().empty());
    return 0;
  }
  for (const auto& [name, storage] : opened->storages())
    FuzzCheck(storage.file_offset <= size && storage.bytes <= size - storage.file_offset);
  uint64_t left = 1 << 12;  // of the tensors' extents: there may be 2^20 of each
  (void)ForEachTensor(opened->root(), [&](const std::string& name, const TensorRef& tensor) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const StoredArray found, ArrayOf(*opened, tensor, 0, name));
    const uint64_t bytes = SizeOf(found.dtype);
    for (const StoredExtent& extent : found.extents)
      FuzzCheck(extent.file_offset <= size && extent.range.size() <= (size - extent.file_offset) / bytes);
    if (found.extents.size() >= left) return Corrupt("enough");
    left -= found.extents.size();
    return OkStatus();
  });
  return 0;
}
