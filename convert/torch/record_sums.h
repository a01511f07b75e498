// The CRC-32 of records, checked while their bytes are read, in any order and by any reader: a conversion
// reads its source once.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "convert/torch/crc32_sum.h"
#include "convert/torch/zip_container.h"

namespace cairn {

struct SummedRecord {
  uint32_t file = 0;  // into the source's files
  ZipRecord record;
};

class RecordSums {
 public:
  // Records of a file do not overlap. Those whose CRC is 0 were written without one, and are passed over.
  explicit RecordSums(std::vector<SummedRecord> records);

  // Bytes of a file from `offset` on, as they were read. Bytes that were added before are ignored.
  void Add(uint32_t file, uint64_t offset, std::span<const std::byte> bytes);

  // The missing stretches of records that were added in part.
  struct Gap {
    uint32_t file = 0;
    Stretch where;
  };
  std::vector<Gap> Gaps() const;
  // Once the gaps were added. `names`: of the files, for messages. Errors: Corrupt naming the file and the
  // first record, among those of which bytes were added, that does not match its CRC.
  Status Check(std::span<const std::string> names) const;

 private:
  struct State {
    SummedRecord of;
    Crc32Sum sum;
    std::map<uint64_t, uint64_t> added;  // stretches of the record: begin -> end; they do not touch
  };
  // Adds a stretch of the record that was not added yet.
  static void AddNew(State& state, uint64_t begin, std::span<const std::byte> bytes);

  std::vector<State> states_;  // by file and offset
};

}  // namespace cairn
