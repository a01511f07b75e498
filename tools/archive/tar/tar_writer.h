// Writes a pax tar of files, directories and links, front to back, in bounded memory.
//
// libarchive makes the headers only: it must know an entry's size before its first byte, and a packed file's
// size is known after its last (packed_file.h). Such an entry gets a header for the largest size that it can
// have, and the true header, equally long, replaces it before the file is synced. The file is padded with
// zeros to whole pages, as a tar may be, so that it can be written and read back past the page cache. If the
// file would become too large, it continues in the next piece (tar_pieces.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/io/stream_writer.h"
#include "tools/archive/tar/record.h"

namespace cairn {

class TarWriter {
 public:
  // `most`: bytes of a file; 0: no limit.
  static Result<std::unique_ptr<TarWriter>> Create(FileSystem& fs, WriteRing& ring, const std::string& path,
                                                   uint64_t most = 0);

  // The metadata of an entry.
  struct Header {
    std::string name;
    EntryKind kind = EntryKind::kFile;
    std::string target = {};  // of a link
    EntryFacts facts = {};
    bool of_tree = false;  // its owner and the fraction of its time are written
  };

  // Starts an entry; the one before it must be whole. Errors: InvalidArgument if bytes of it are missing.
  Status Begin(Header header, uint64_t bytes);
  Status Begin(const std::string& name, uint64_t bytes, int64_t modified_unix_seconds);
  // The same for an entry of at most `bytes`; the next call but Write() ends it.
  Status BeginUpTo(Header header, uint64_t bytes);
  // The next bytes of the entry. Errors: those of the disk; InvalidArgument if they are too many.
  Status Write(std::span<const std::byte> bytes);
  // Appends whole entries of another tar, unchanged.
  Status Append(std::span<const std::byte> blocks);
  // Writes end marker, padding and true headers, syncs and closes. Returns the bytes of the whole tar.
  Result<uint64_t> Finish();

  // Where the next byte goes: after Begin(), of the entry's data.
  uint64_t offset() const { return begin_ + out_->bytes(); }
  // The bytes of the entry so far.
  uint64_t entry_bytes() const { return entry_.written; }
  // Once finished: bytes of each file.
  const std::vector<uint64_t>& pieces() const { return pieces_; }

 private:
  struct Entry {
    Header header;
    uint64_t header_offset = 0;  // in its piece
    size_t header_bytes = 0;
    uint64_t most = 0;  // bytes that it may have
    uint64_t written = 0;
    bool open_end = false;
  };
  struct Patch {
    uint64_t offset;
    std::string header;
  };

  TarWriter(FileSystem& fs, WriteRing& ring, std::string path, uint64_t most)
      : fs_(fs), ring_(ring), path_(std::move(path)), most_(most) {}
  Status Start(Entry entry);
  Status EndEntry();
  Status BeginPiece();
  Status FinishPiece();
  Status Zeros(uint64_t bytes);

  FileSystem& fs_;
  WriteRing& ring_;
  const std::string path_;
  const uint64_t most_;
  std::vector<uint64_t> pieces_;  // that are finished
  uint64_t begin_ = 0;            // of the one that is not
  std::unique_ptr<StreamWriter> out_;
  Entry entry_;
  std::vector<Patch> patches_;
};

// Bytes that an entry of this size takes at most: header and padding included.
uint64_t TarEntryBytes(uint64_t bytes);
// Files of at most `most` bytes (0: no limit) that a tar of entries of these sizes takes.
uint64_t CountTarPieces(const std::vector<uint64_t>& entry_bytes, uint64_t most);

}  // namespace cairn
