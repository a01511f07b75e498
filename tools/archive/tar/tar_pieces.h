// A tar that is too large for one file of the store lies in pieces: X.tar, X.tar.2, X.tar.3 and so on.
//
// It is cut between entries, so that no piece but one of a single entry exceeds the limit, and every piece
// has the end of a tar: any tar program lists and extracts it alone (this is not a multi-volume archive of
// tar -M). One behind the other they are the member's tar, as `cat X.tar X.tar.2 | tar -xi` reads it. Offsets
// count from the begin of the first, as if they were one file; the sidecar says how many bytes each has
// (record.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/stream_writer.h"
#include "tools/archive/tar/tar_index.h"

namespace cairn {

// "X.tar", 3 -> "X.tar.3"; 1: itself. The mark of a file that is being written stays at the end.
std::string TarPieceName(std::string_view tar, size_t number);
// What the name of any piece but the first tells; nothing for any other name.
struct TarPieceParts {
  std::string tar;
  size_t number = 0;
};
std::optional<TarPieceParts> ParseTarPieceName(std::string_view name);

// For each tar in a directory: the numbers of the pieces that are there besides the first, ascending.
Result<std::map<std::string, std::vector<size_t>>> ListTarPieces(FileSystem& fs,
                                                                 const std::string& directory);

// Paths of a tar's files.
std::vector<std::string> FilesOf(const TarPlace& place);
// Those of them in which any of these files of a member lies.
std::vector<std::string> FilesWith(const TarPlace& place, const ArchiveRecord& record,
                                   const std::vector<std::string>& names);
// A tar without a sidecar, with the pieces that are there. Errors: Corrupt naming one that is missing.
Result<TarPlace> FindTar(FileSystem& fs, const std::string& path);

// Bytes of all files. Errors: Corrupt naming a piece that is missing or has another size than it should.
Result<uint64_t> StatTar(FileSystem& fs, const TarPlace& place);
// All files as one. Pieces are opened once they are read, so that nothing is recalled from tape that nobody
// asked for; `fs` must live as long. `past_cache`: past_cache_file.h.
Result<std::shared_ptr<File>> OpenTar(FileSystem& fs, const TarPlace& place, bool past_cache);

// Writes the files of a tar, front to back, where the size of each is known.
class TarFilesWriter {
 public:
  TarFilesWriter(FileSystem& fs, WriteRing& ring, TarPlace place, uint64_t bytes);
  Status Append(std::span<const std::byte> bytes);
  // Syncs and closes what was written last.
  Status Finish();

 private:
  FileSystem& fs_;
  WriteRing& ring_;
  const std::vector<std::string> paths_;
  const std::vector<uint64_t> sizes_;
  size_t next_ = 0;  // to create
  std::unique_ptr<StreamWriter> out_;
};

}  // namespace cairn
