// Writes a planned checkpoint of another system from the blocks of its tensors as they come.
//
// Bytes go from a block to their files through write buffers, one for each array that a tensor has begun in;
// the CRC of each storage is summed on the way.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ckpt/io/paged_file.h"
#include "convert/foreign/part_index.h"
#include "convert/foreign/stored_target.h"
#include "convert/foreign/transpose.h"
#include "convert/torch/crc32_sum.h"

namespace cairn {

class StoredWriter final : public BlockTarget {
 public:
  // Creates the target's files, and the directories that they lie in, in `directory`. `target` must
  // outlive it, `ring` must live until it is destroyed or Finish() has returned OK.
  static Result<std::unique_ptr<StoredWriter>> Create(FileSystem& fs, WriteRing& ring,
                                                      const std::string& directory,
                                                      const StoredTarget& target, Direct direct);

  Status Write(const Block& block) override;
  Status EndTensors() override;
  // Writes the bytes around the storages, texts and copies, and makes everything durable. `source`: the
  // fingerprint of the tensors that were read. `quantization_error`: as in StorageSums.
  Status Finish(const Digest& source, double quantization_error = 0);
  // Containers of file number `file`, by offset.
  const std::vector<uint32_t>& ContainersOf(uint32_t file) const { return containers_[file]; }
  uint64_t OffsetOf(uint32_t container) const { return target_.containers[container].offset; }
  // The bytes of a container that belong to no tensor, by offset in the file. Final after Finish().
  std::vector<PlacedBytes> Frame(uint32_t container) const;

 private:
  // A run of bytes that continues in one storage.
  struct Stream {
    bool open = false;
    uint32_t storage = 0;
    uint32_t crc = 0;    // linear, of the run
    uint64_t begin = 0;  // of the run, in the file
    PagedFile::Cursor cursor;
  };

  StoredWriter(FileSystem& fs, std::string directory, const StoredTarget& target)
      : fs_(fs),
        directory_(std::move(directory)),
        target_(target),
        parts_(target.parts),
        streams_(target.arrays.size()) {}
  Status Open(WriteRing& ring, Direct direct);
  bool ScattersColumns(const ArrayPart& part) const;
  Box AllTurns(const ArrayPart& part, const Box& common) const;
  std::optional<std::vector<std::byte>> Join(const ArrayPart& part, const Box& common, const Box& all,
                                             const Block& block);
  Status WriteRun(uint32_t array, uint64_t element, std::span<const std::byte> bytes);
  Status Put(Stream& stream, uint32_t storage, uint64_t offset, std::span<const std::byte> bytes);
  Status End(Stream& stream);
  Status EndArray(uint32_t array);
  Status WriteFrame(uint32_t container);
  Status WriteFile(const TargetFile& file);
  const TargetContainer& ContainerOf(uint32_t storage) const {
    return target_.containers[target_.storages[storage].container];
  }
  uint64_t StorageOffset(uint32_t storage) const {
    const TargetContainer& there = ContainerOf(storage);
    return there.offset + there.layout->storage_offset(target_.storages[storage].index);
  }
  // Null if the container has no checksums.
  Crc32Sum* CrcOf(uint32_t storage) {
    const auto [container, index] = target_.storages[storage];
    return crcs_[container].empty() ? nullptr : &crcs_[container][index];
  }

  FileSystem& fs_;
  const std::string directory_;
  std::set<std::string> directories_;  // below it, that the files lie in
  const StoredTarget& target_;
  const PartIndex parts_;
  std::optional<WaitingPages> waiting_;
  std::vector<std::unique_ptr<PagedFile>> files_;  // null: of a file without containers
  std::vector<std::vector<Crc32Sum>> crcs_;        // of each container's storages, if it wants them
  std::vector<std::vector<uint32_t>> containers_;  // of each file
  std::vector<std::vector<uint32_t>> constants_;   // of each container
  std::vector<uint64_t> left_;                     // bytes of each container's arrays that are to come
  std::vector<bool> framed_;                       // containers whose frame is written
  std::vector<std::unique_ptr<Stream>> streams_;   // of each array that is being written
  std::vector<uint32_t> active_;                   // those arrays
  std::vector<std::unique_ptr<Stream>> idle_;
  BoxTransposer transposer_;
  struct Joined {
    std::vector<std::byte> bytes;
    uint64_t left = 0;  // turns that are to come
  };
  std::map<std::pair<uint32_t, uint64_t>, Joined> joined_;  // by array and first element
  std::vector<std::byte> spare_;                            // of the last one
  Digest source_{};
  double quantization_error_ = 0;
};

}  // namespace cairn
