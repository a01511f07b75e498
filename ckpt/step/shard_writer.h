// Writes one shard piece by piece, for streams: every byte once, aligned, in any order of pieces, with
// digests taken on the way. Nothing is durable before Finish().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/io/write_ring.h"
#include "ckpt/step/shard_plan.h"

namespace cairn {

// What to do if the shard's file already exists.
enum class Existing {
  kRefuse,
  kResume,  // keep its bytes: it is an unfinished file of the same plan
};

class ShardWriter {
 public:
  // Lays out and creates `directory`/`contents.name()`.
  static Result<std::unique_ptr<ShardWriter>> Create(FileSystem& fs, WriteRing& ring,
                                                     const std::string& directory, ShardContents contents,
                                                     Direct direct = Direct::kAuto,
                                                     Existing existing = Existing::kRefuse);

  ~ShardWriter() { (void)ring_.Drain(); }  // writes in flight refer to the file
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // The next bytes of piece `piece` (index into the given ones), in row-major order. Returns once copied.
  // Errors: InvalidArgument beyond the piece's end; an earlier write's.
  Status Append(size_t piece, std::span<const std::byte> bytes);

  // Writes the rest of the file, syncs and closes it. Errors: InvalidArgument if a piece is incomplete;
  // those of the disk. After an error the file is condemned: remove the whole partial directory.
  Result<ShardReceipt> Finish();

  // Syncs the file. The ring must be drained.
  Status Sync() { return file_->Sync(); }
  // The piece is already in the file, and its chunks have these digests. Requires as many as it has chunks.
  void Restore(size_t piece, std::span<const cairn::Digest> chunks);

  // The piece must be appended again from its start.
  void Forget(size_t piece) { cursors_[piece] = {}; }

  const ShardPlan& plan() const { return plan_; }
  uint64_t file_bytes() const { return plan_.file_bytes(); }

 private:
  struct Cursor {  // how far a piece is written
    uint64_t appended = 0;
    uint64_t digested = 0;  // the rest lies at the end of the buffer
    std::unique_ptr<Hasher> hasher;
    std::unique_ptr<WriteRing::Buffer> buffer;
  };

  ShardWriter(WriteRing& ring, ShardPlan plan)
      : ring_(ring), plan_(std::move(plan)), cursors_(plan_.piece_count()) {}
  void Digest(size_t piece);
  void Flush(size_t piece, Cursor& cursor);

  WriteRing& ring_;
  ShardPlan plan_;
  std::unique_ptr<File> file_;
  std::vector<Cursor> cursors_;
};

}  // namespace cairn
