// Proof that an archived step is whole: its tar read back from the disk, every byte against the step's own
// digests.
#pragma once

#include <functional>
#include <string>

#include "ckpt/step/verify.h"
#include "tools/archive/store/store.h"
#include "tools/archive/tar/tar_file_system.h"
#include "tools/archive/tar/tar_index.h"
#include "tools/archive/tar/verified_copy.h"

namespace cairn {

using ByteProgress = std::function<void(uint64_t bytes_done)>;

// Reads the tar at `place` and reports everything that is wrong with it. `record`: what its sidecar says,
// which must agree with the tar; null if it has none.
VerifyReport VerifyTar(FileSystem& fs, const TarPlace& place, const ArchiveRecord* record,
                       const ByteProgress& progress = {});

// What the step's own digests do not cover: that the tar's headers and its list for sha256sum say what the
// record says, entry by entry. Errors: Corrupt naming the first difference.
Status CheckAgainstRecord(TarFileSystem& view, const ArchiveRecord& record);

// All bytes of a file, in order. Errors: those of the disk, and the sink's own.
Status ReadThrough(FileSystem& fs, const std::string& path, uint64_t bytes, const ByteSink& sink);

// The same for a member as ListStore found it; damage of its sidecar is a problem too.
VerifyReport VerifyMember(const Store& store, const ArchiveMember& member, const ByteProgress& progress = {});

}  // namespace cairn
