// Writes a planned target from blocks of its tensors as they come.
//
// Bytes go from a block to their files through write buffers, one for each array that a tensor has begun in;
// the CRC of each storage is summed on the way.
#pragma once

#include <map>
#include <memory>

#include "ckpt/io/paged_file.h"
#include "convert/foreign/stored_target.h"
#include "convert/stream/block_stream.h"
#include "convert/torch/crc32_sum.h"

namespace cairn {

class StoredWriter {
 public:
  // Creates the target's files, and the directories that they lie in, in `directory`. `target` and `ring`
  // must outlive it.
  static Result<std::unique_ptr<StoredWriter>> Create(FileSystem& fs, WriteRing& ring,
                                                      const std::string& directory,
                                                      const StoredTarget& target, Direct direct);

  // The next block of `block.tensor` (into the target's tensors), in its written type. Tensors come one after
  // the other.
  Status Write(const Block& block);
  // After the last block of a tensor.
  Status EndTensor();
  // What is around the storages; everything durable.
  Status Finish();

 private:
  // A run of bytes that goes on in one storage.
  struct Stream {
    bool open = false;
    uint32_t zip = 0;
    uint32_t storage = 0;
    uint32_t crc = 0;  // linear, of the run
    PagedFile::Cursor cursor;
  };

  StoredWriter(FileSystem& fs, std::string directory, const StoredTarget& target)
      : fs_(fs), directory_(std::move(directory)), target_(target), streams_(target.arrays.size()) {}
  Status Open(WriteRing& ring, Direct direct);
  Status WritePart(const ArrayPart& part, const Box& common, const Block& block);
  Status WriteRun(uint32_t array, uint64_t element, std::span<const std::byte> bytes);
  Status Put(Stream& stream, const TargetExtent& extent, uint64_t offset, std::span<const std::byte> bytes);
  Status End(Stream& stream);
  Status WriteConstants();
  std::span<const std::byte> Transpose(const Box& common, const Block& block, uint64_t size);
  uint64_t StorageOffset(uint32_t zip, uint32_t storage) const {
    return target_.zips[zip].offset + target_.zips[zip].layout.storage_offset(storage);
  }

  FileSystem& fs_;
  const std::string directory_;
  const StoredTarget& target_;
  std::vector<std::unique_ptr<PagedFile>> files_;  // null: a text file
  std::vector<std::vector<Crc32Sum>> crcs_;        // of each zip's storages
  std::vector<std::vector<uint32_t>> parts_;       // of each tensor
  std::vector<std::unique_ptr<Stream>> streams_;   // of each array that is being written
  std::vector<uint32_t> active_;                   // those arrays
  std::vector<std::unique_ptr<Stream>> idle_;
  std::vector<std::byte> transposed_;
};

}  // namespace cairn
