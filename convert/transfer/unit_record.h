// The record of a finished unit of a reshape: its part of one stage's tensors lies in the target's shards
// and was read back. With the records in the partial directory a killed run is resumed, and several processes
// tell each other which units are done.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/io/file_system.h"

namespace cairn {

struct UnitRecord {
  Digest job{};  // source and target of the reshape
  uint32_t stage = 0;
  uint32_t unit = 0;                          // of the stage
  std::vector<std::array<uint64_t, 2>> sums;  // of its tensors' elements (TensorFingerprint)
  std::vector<Digest> chunks;                 // of its tensors' pieces, tensor by tensor, piece by piece
  bool operator==(const UnitRecord&) const = default;
};

// "unit-00002-00013.done"
std::string UnitRecordName(int stage, size_t unit);
bool IsUnitRecordName(std::string_view name);

// Creates the record's file, synced.
Status WriteUnitRecord(FileSystem& fs, const std::string& directory, const UnitRecord& record);
// Errors: NotFound; Corrupt if it was cut short or is another job's or unit's.
Result<UnitRecord> ReadUnitRecord(FileSystem& fs, const std::string& directory, const Digest& job, int stage,
                                  size_t unit);

}  // namespace cairn
