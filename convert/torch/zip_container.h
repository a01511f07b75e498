// The zip container of torch.save: which record lies where. Nothing is unpacked; records are stored as they
// are.
//
// The central directory counts; of local headers only the length is used, to find the data. A record inside
// another one, outside of the container, compressed, or with a duplicate name is refused: no writer of
// checkpoints makes one. Source: APPNOTE.TXT 6.3, 4.3 to 4.5, and torch's caffe2/serialize.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

struct ZipRecord {
  std::string name;          // without the archive's own directory: "data.pkl", "data/0"
  uint64_t file_offset = 0;  // of its first byte in the file
  uint64_t bytes = 0;
  uint32_t crc = 0;  // 0: its writer left it out
};

// A stretch of a file; a whole one as a rule, or an item of a .distcp file.
struct Stretch {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
};

Result<std::string> ReadBytes(File& file, uint64_t offset, uint64_t bytes);

class ZipContainer {
 public:
  // Errors: Corrupt naming record and offset; NotSupported if a record is compressed or encrypted.
  static Result<ZipContainer> Read(File& file, Stretch where);

  const std::vector<ZipRecord>& records() const { return records_; }  // by name
  const ZipRecord* Find(std::string_view name) const;

 private:
  std::vector<ZipRecord> records_;
};

// Bytes of a record that is held in memory whole. Errors: Corrupt if its CRC differs.
Result<std::string> ReadRecord(File& file, const ZipRecord& record, uint64_t max_bytes);

}  // namespace cairn
