// The zip container of torch.save: where its records lie.
#include "convert/torch/zip_container.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() { return {}; }

std::vector<std::string> FuzzWords() {
  return {"PK\3\4",
          "PK\1\2",
          "PK\5\6",
          "PK\6\6",
          "PK\6\7",
          Little(UINT32_MAX, 4),
          "../",
          "/",
          "a/data.pkl",
          "a/data/0",
          Little(1, 2) + Little(24, 2),
          Little(UINT64_MAX, 8)};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  MemoryFile file(TextOf(data, size));
  // A file by itself, and an item within a .distcp file.
  for (const Stretch where : {Stretch{0, size}, Stretch{size / 8, size - size / 8}}) {
    const auto zip = ZipContainer::Read(file, where);
    if (!zip.ok()) {
      FuzzCheck(!zip.status().message().empty());
      continue;
    }
    uint64_t sum = 0;
    for (const ZipRecord& record : zip->records()) {
      FuzzCheck(record.file_offset >= where.begin && record.file_offset <= where.end &&
                record.bytes <= where.end - record.file_offset && zip->Find(record.name) == &record);
      sum += record.bytes;
      if (const auto bytes = ReadRecord(file, record, 1 << 12); bytes.ok())
        FuzzCheck(bytes->size() == record.bytes);
    }
    FuzzCheck(sum <= where.size());  // no byte is in two records, so they are not larger than the file
  }
  return 0;
}
