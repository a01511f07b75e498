// Tars in pieces: a tar that is too large for one file of the store lies in X.tar, X.tar.2, X.tar.3 and so
// on.
//
// It is cut between entries, so only a piece of a single entry can exceed the limit. Every piece has the end
// of a tar: any tar program lists and extracts it by itself (this is not a multi-volume archive of tar -M).
// Concatenated, the pieces are the member's tar, as `cat X.tar X.tar.2 | tar -xi` reads it. Offsets count
// from the beginning of the first, as in one file; the sidecar has the bytes of each (record.h).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/io/stream_writer.h"
#include "tools/archive/tar/record.h"

namespace cairn {

// The place of a member's entries: a whole tar, the pieces of one, or a part of a bundle.
struct TarPlace {
  std::string root;  // its name in messages, and the directory that a view of it shows
  std::string file;
  Form form = Form::kFull;
  uint64_t begin = 0;
  uint64_t bytes = UINT64_MAX;        // up to the end of the file
  std::vector<uint64_t> pieces = {};  // bytes of each, `file` being the first; empty: one file
};
// The place of a tar that holds one member, under any path; the form follows from its name.
TarPlace PlaceOfTar(const std::string& path);

// For each tar in a directory: the numbers of its pieces, without the first, ascending.
Result<std::map<std::string, std::vector<size_t>>> ListTarPieces(FileSystem& fs,
                                                                 const std::string& directory);

// Paths of a tar's files.
std::vector<std::string> FilesOf(const TarPlace& place);
// Those that contain any of these files of a member.
std::vector<std::string> FilesWith(const TarPlace& place, const ArchiveRecord& record,
                                   const std::vector<std::string>& names);
// A tar without a sidecar, with the existing pieces. Errors: Corrupt naming one that is missing.
Result<TarPlace> FindTar(FileSystem& fs, const std::string& path);

// Bytes of all files. Errors: Corrupt naming a piece that is missing or has the wrong size.
Result<uint64_t> StatTar(FileSystem& fs, const TarPlace& place);
// All files as one. A piece is opened when it is read, so that nothing else is recalled from tape; `fs` must
// outlive the result. `past_cache`: past_cache_file.h.
Result<std::shared_ptr<File>> OpenTar(FileSystem& fs, const TarPlace& place, bool past_cache);

// Writes the files of a tar of known sizes, front to back.
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
