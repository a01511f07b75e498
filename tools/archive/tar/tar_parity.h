// Blocks next to a tar that repair it: Reed-Solomon (ckpt/codec/erasure.h, ISA-L) over blocks of its bytes,
// of any content, with a digest of each block that tells which ones are damaged.
//
// The tar is cut into blocks of 64 KiB, and the blocks into groups of 32 stripes. A stripe takes every 32nd
// block of its group, so that a burst of up to 2 MiB times the parity blocks of a stripe is repaired, at any
// place; the memory is that of a group, 64 MiB.
//
// STORE/TAR.parity, little-endian:
//   u8[8] "CAIRNTPR" (before: "CAIRNPAR"), u32 version 1, u32 data blocks of a stripe, u32 parity blocks of a
//   stripe, u64 bytes of the tar, u64 data blocks, u64 parity blocks, u8[16] digest of each data block, then
//   of each parity block, u8[16] digest of all before it; then the parity blocks, stripe by stripe, each 64
//   KiB
// Digests are XXH3-128 (ckpt/base/digest.h). Blocks beyond the end of the tar count as zeros.
#pragma once

#include <string>

#include "ckpt/codec/erasure.h"
#include "ckpt/io/file_system.h"
#include "tools/archive/tar/record.h"
#include "tools/archive/tar/tar_index.h"

namespace cairn {

inline constexpr uint64_t kParityBlockBytes = 64 << 10;
inline constexpr uint64_t kStripesOfGroup = 32;

// The most parity, as a fraction of the data.
inline constexpr double kMaxTarParity = 0.5;

// Blocks of a stripe for parity of at least `fraction` of the data. Errors: InvalidArgument beyond
// kMaxTarParity.
struct StripeShape {
  int data = 31;
  int parity = 1;
};
Result<StripeShape> ShapeFor(double fraction);

// The size of a tar's parity file; 0 without parity. Errors: ShapeFor's.
Result<uint64_t> ParityFileBytes(uint64_t tar_bytes, double fraction);

// Writes and syncs the parity file of the tar at `path`. Returns its entry in the sidecar. `source`: where
// the tar lies until it is renamed. Errors: those of the disk, also of reading the tar; nothing is left then.
Result<ArchivedParity> WriteTarParity(FileSystem& fs, const std::string& path, double fraction,
                                      const TarPlace& source);

// The share that gives parity of the same shape as the file at `path`, by its header. Errors: Corrupt if that
// is damaged.
Result<double> ReadParityShare(FileSystem& fs, const std::string& path);

// Writes the files of the tar at `place` again as those of `target`, with damaged blocks computed from the
// others; truncated, lengthened and missing pieces are restored. Returns how many blocks were computed.
// Errors: Corrupt if too much of a stripe, or the parity itself, is lost; the new files are removed then.
Result<uint64_t> RepairTar(FileSystem& fs, const TarPlace& place, const TarPlace& target);

}  // namespace cairn
