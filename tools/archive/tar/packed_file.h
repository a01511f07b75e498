// Packed files of the archive: chunks as independent zstd frames, followed by a table of them.
//
// The frames hold what the codec made of the chunks (ckpt/codec/plane_codec.h): the bytes of every element
// sorted into planes, so that exponents lie beside exponents; or the chunk as it is; or, of an fp32 master
// whose bf16 weight lies in the same tar, its low halves only (ckpt/codec/split_master.h), with a list of the
// elements whose high half is not the weight's. Every file comes back bit for bit.
//
//   FRAME...                                     RFC 8878; each with its content size
//   skippable frame 0x184D2A5C: u8[8] "CAIRNPK1", u64 bytes of the file, u32 names, of each: u16 length,
//     UTF-8; u32 frames, of each: u32 bytes of the file, u32 stored bytes, u8 element bytes (1: as they are),
//     u8 kind (0: planes; 1: low halves, followed by u32 name, u64 offset of the weights in that file, u32
//     exceptions, of each: u32 index, u16 high half)
//   skippable frame 0x184D2A5E: the seek table of zstd's contrib/seekable_format, the table above included
//
// Little-endian. So `zstd -dc` gives the chunks one after another, still in planes, and the few lines of
// Python in every store (unpack.py) give the file.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt/codec/plane_codec.h"
#include "ckpt/codec/split_master.h"
#include "ckpt/io/file_system.h"
#include "ckpt/io/read_only_file_system.h"

namespace cairn {

struct PackedFrame {
  uint32_t bytes = 0;  // of the file
  uint32_t stored_bytes = 0;
  uint8_t element_bytes = 1;
  bool low_halves = false;
  uint32_t weight_name = 0;      // with low_halves: into the table's names
  uint64_t weight_offset = 0;    // bytes in that file
  uint32_t first_exception = 0;  // into the table's exceptions
  uint32_t exceptions = 0;
  bool operator==(const PackedFrame&) const = default;
};

struct PackedTable {
  uint64_t bytes = 0;  // of the file
  std::vector<std::string> names;
  std::vector<PackedFrame> frames;
  std::vector<MasterException> exceptions;
  bool operator==(const PackedTable&) const = default;
};

// Both skippable frames, which follow the last frame.
std::string EncodePackedTail(const PackedTable& table);
// Room for them, with this many frames at most.
uint64_t PackedTailBytesAtMost(uint64_t frames, uint64_t exceptions, uint64_t name_bytes);

// A part of a larger file, which it shares.
struct FileRange {
  std::shared_ptr<File> file;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Reads the table of what lies in `range`. Errors: Corrupt; the caller adds the path.
Result<PackedTable> ReadPackedTable(const FileRange& range);

// Another file of the same tar, as the low halves need it: bytes [offset, offset + out.size()) of it.
using SiblingReader =
    std::function<Status(const std::string& name, uint64_t offset, std::span<std::byte> out)>;

// The unpacked file. Decodes whole frames and keeps the last few: readers of neighbouring ranges share the
// frame between them, and wait for the one that decodes it. Safe from several threads.
class PackedFile final : public ReadOnlyFile {
 public:
  // Without `siblings` it refuses low halves, so that a sibling never asks for its own siblings.
  static Result<std::unique_ptr<PackedFile>> Open(std::string path, FileRange range, SiblingReader siblings);

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override;
  const std::string& path() const override { return path_; }
  uint64_t bytes() const { return table_.bytes; }

 private:
  struct Scratch {
    PlaneDecoder decoder;
    std::vector<std::byte> stored, low, weights;
  };
  struct Decoded {
    size_t frame = 0;
    bool ready = false;
    Status status;
    std::vector<std::byte> bytes;
  };

  PackedFile(std::string path, FileRange range, PackedTable table, SiblingReader siblings);
  Result<std::shared_ptr<const Decoded>> FrameAt(size_t frame);
  std::shared_ptr<Decoded> StartFrame(size_t frame);
  Status Decode(size_t frame, Scratch& scratch, std::vector<std::byte>& out);
  Status JoinLow(const PackedFrame& frame, Scratch& scratch, std::span<std::byte> out);
  std::unique_ptr<Scratch> TakeScratch();

  const std::string path_;
  const FileRange range_;
  const PackedTable table_;
  const SiblingReader siblings_;
  std::vector<uint64_t> begins_;   // of each frame in the file
  std::vector<uint64_t> offsets_;  // of each frame in the range
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<std::unique_ptr<Scratch>> idle_;
  std::deque<std::shared_ptr<Decoded>> recent_;  // the most recently used one last
};

// Appends a zstd frame of these bytes, uncompressed. Requires at most kMaxCodecChunkBytes.
void AppendRawFrame(std::span<const std::byte> bytes, std::vector<std::byte>& out);

}  // namespace cairn
