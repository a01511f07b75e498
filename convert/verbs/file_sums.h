// The checksums in files of other systems: the CRC-32 of each record of a torch.save zip, a file by itself or
// an item in a .distcp, and the SHA256SUMS beside a release.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/base/sha256_sums.h"
#include "ckpt/step/verify.h"
#include "convert/torch/record_sums.h"

namespace cairn {

// The checksums of a directory. `files` are names relative to `directory`, as a source's catalog has them.
struct FileSums {
  std::vector<std::string> zips;                       // names
  std::vector<std::pair<std::string, Stretch>> items;  // zips in a .distcp, and their names
  std::vector<Sha256Sum> digests;                      // of SHA256SUMS
  uint64_t bytes = 0;                                  // that a check reads

  bool empty() const { return zips.empty() && items.empty() && digests.empty(); }
};

// Errors: Corrupt (SHA256SUMS is not what sha256sum writes, or names a file elsewhere); IoError.
Result<FileSums> FindFileSums(FileSystem& fs, const std::string& directory,
                              const std::vector<std::string>& files);

// Only the zips, without SHA256SUMS. The .metadata beside a .distcp says where its zips are.
FileSums FindZips(FileSystem& fs, const std::string& directory, const std::vector<std::string>& files);

// The records of the zips, for a source of these `files` that checks them while it reads. Errors: Corrupt (a
// zip that cannot be read).
Result<std::vector<SummedRecord>> RecordsOf(FileSystem& fs, const std::string& directory,
                                            const std::vector<std::string>& files, const FileSums& sums);

// Reads all those files. A file that is missing, unreadable, or does not match its sum is a problem.
// Records whose CRC is 0 have no checksum. `progress` gets the bytes done; may be empty.
VerifyReport CheckFileSums(FileSystem& fs, const std::string& directory, const FileSums& sums,
                           const std::function<void(uint64_t)>& progress = {});

}  // namespace cairn
