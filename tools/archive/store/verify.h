// Verifies an archived member: reads its tar back from the disk and compares every byte with the step's own
// digests.
#pragma once

#include <functional>
#include <string>

#include "ckpt/step/verify.h"
#include "tools/archive/store/store.h"
#include "tools/archive/tar/tar_file_system.h"
#include "tools/archive/tar/tar_index.h"

namespace cairn {

using ByteProgress = std::function<void(uint64_t bytes_done)>;
using ByteSink = std::function<Status(std::span<const std::byte>)>;

// Adds up the bytes of several files for one progress, which may be empty.
class ProgressSum {
 public:
  explicit ProgressSum(const ByteProgress& progress) : progress_(progress) {}
  void Add(uint64_t bytes) { Report(done_ += bytes); }
  // For work that counts its own bytes, beginning at 0.
  ByteProgress OnTop() {
    return [this](uint64_t bytes) { Report(done_ + bytes); };
  }

 private:
  void Report(uint64_t bytes) const {
    if (progress_) progress_(bytes);
  }
  const ByteProgress& progress_;
  uint64_t done_ = 0;
};

// Reads the tar at `place` and reports every problem. `record`: its sidecar, which must agree with the tar;
// null if it has none.
VerifyReport VerifyTar(FileSystem& fs, const TarPlace& place, const ArchiveRecord* record,
                       const ByteProgress& progress = {});

// Compares the tar's headers and its list for sha256sum with the record, entry by entry: the step's own
// digests do not cover them. Errors: Corrupt naming the first difference.
Status CheckAgainstRecord(TarFileSystem& view, const ArchiveRecord& record);

// VerifyTar for a member as ListStore found it; damage of its sidecar is a problem too.
VerifyReport VerifyMember(const Store& store, const ArchiveMember& member, const ByteProgress& progress = {});

// Hands all bytes of a file to `sink`, in order, and returns their SHA-256 in hexadecimal. Errors: those of
// the disk and of the sink.
Result<std::string> HashThrough(FileSystem& fs, const std::string& path, uint64_t bytes,
                                const ByteSink& sink = {});

// Copies `file` of `step` to `sink` while its digests are checked. Bytes are handed on before they are known
// to be good, so the copy must not be used until this returns OK. Errors: Corrupt naming file, tensor and
// offset; those of the sink.
Status CopyVerified(FileSystem& fs, const StepReader& step, const ManifestFile& file, const ByteSink& sink);

}  // namespace cairn
