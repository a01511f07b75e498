// PiecesFile presents all pieces as one file; a piece is opened when a byte of it is read. Code that reads
// tars therefore does not know of pieces. Without a sidecar the pieces are found by their names; a gap in
// their numbers is an error, but names cannot show whether the last ones are missing. TarFilesWriter is the
// inverse: it cuts a stream of bytes at the sizes that the pieces had.

#include "tools/archive/tar/tar_pieces.h"

#include <algorithm>
#include <mutex>

#include "ckpt/base/canonical_path.h"
#include "ckpt/io/past_cache_file.h"
#include "ckpt/io/read_only_file_system.h"

namespace cairn {
namespace {

// Pieces as one file.
class PiecesFile final : public ReadOnlyFile {
 public:
  PiecesFile(FileSystem& fs, const TarPlace& place, bool past_cache)
      : fs_(fs),
        path_(place.file),
        paths_(FilesOf(place)),
        sizes_(place.pieces),
        past_cache_(past_cache),
        files_(paths_.size()) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    const uint64_t end = offset + bytes.size();
    for (size_t i = 0; i < sizes_.size() && !bytes.empty(); ++i) {
      if (offset >= sizes_[i]) {
        offset -= sizes_[i];
        continue;
      }
      const std::span part = bytes.first(std::min<uint64_t>(bytes.size(), sizes_[i] - offset));
      CAIRN_ASSIGN_OR_RETURN(File * file, Open(i));
      CAIRN_RETURN_IF_ERROR(file->ReadAt(offset, part));
      bytes = bytes.subspan(part.size());
      offset = 0;
    }
    return bytes.empty() ? OkStatus() : Corrupt("{}: ends before byte {}", path_, end);
  }
  const std::string& path() const override { return path_; }

 private:
  Result<File*> Open(size_t i) {
    const std::lock_guard lock(mutex_);
    if (!files_[i]) {
      CAIRN_ASSIGN_OR_RETURN(files_[i],
                             past_cache_ ? OpenPastCache(fs_, paths_[i]) : fs_.OpenForRead(paths_[i]));
    }
    return files_[i].get();
  }

  FileSystem& fs_;
  const std::string path_;
  const std::vector<std::string> paths_;
  const std::vector<uint64_t> sizes_;
  const bool past_cache_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace

TarPlace PlaceOfTar(const std::string& path) {
  std::string name(LastName(path));
  if (name.ends_with(kPartialSuffix)) name.resize(name.size() - kPartialSuffix.size());  // repaired
  const auto parts = ParseTarName(name);
  return {.root = path, .file = path, .form = parts ? parts->form : Form::kFull};
}

Result<std::map<std::string, std::vector<size_t>>> ListTarPieces(FileSystem& fs,
                                                                 const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  std::map<std::string, std::vector<size_t>> pieces;
  for (const std::string& name : names)
    if (const auto parts = ParseTarPieceName(name)) pieces[parts->tar].push_back(parts->number);
  for (auto& [tar, numbers] : pieces) std::ranges::sort(numbers);
  return pieces;
}

std::vector<std::string> FilesOf(const TarPlace& place) {
  std::vector<std::string> paths{place.file};
  while (paths.size() < place.pieces.size()) paths.push_back(TarPieceName(place.file, paths.size() + 1));
  return paths;
}

std::vector<std::string> FilesWith(const TarPlace& place, const ArchiveRecord& record,
                                   const std::vector<std::string>& names) {
  const std::vector<std::string> paths = FilesOf(place);
  if (place.pieces.empty()) return paths;
  std::vector<std::string> wanted;
  uint64_t begin = 0;
  for (size_t i = 0; i < paths.size(); begin += place.pieces[i++])
    if (std::ranges::any_of(record.files, [&](const ArchivedFile& file) {
          return file.offset >= begin && file.offset - begin < place.pieces[i] &&
                 std::ranges::find(names, file.name) != names.end();
        }))
      wanted.push_back(paths[i]);
  return wanted;
}

Result<TarPlace> FindTar(FileSystem& fs, const std::string& path) {
  TarPlace place = PlaceOfTar(path);
  CAIRN_ASSIGN_OR_RETURN(auto all, ListTarPieces(fs, ParentDir(path)));
  const std::vector<size_t>& numbers = all[std::string(LastName(path))];
  for (size_t number = 1; !numbers.empty() && number <= numbers.back(); ++number) {
    const std::string piece = TarPieceName(path, number);
    const Result<FileInfo> info = fs.Stat(piece);
    if (!info.ok()) return Corrupt("{} is missing, or cannot be read: {}", piece, info.status().message());
    place.pieces.push_back(info->bytes);
  }
  return place;
}

Result<uint64_t> StatTar(FileSystem& fs, const TarPlace& place) {
  if (place.pieces.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(place.file));
    return info.bytes;
  }
  uint64_t bytes = 0;
  const std::vector<std::string> paths = FilesOf(place);
  for (size_t i = 0; i < paths.size(); bytes += place.pieces[i++]) {
    const Result<FileInfo> info = fs.Stat(paths[i]);
    if (info.status().kind() == StatusKind::kNotFound) return Corrupt("{} is missing", paths[i]);
    if (!info.ok()) return info.status();
    if (info->bytes != place.pieces[i])
      return Corrupt("{} has {} bytes, but the sidecar says {}", paths[i], info->bytes, place.pieces[i]);
  }
  return bytes;
}

Result<std::shared_ptr<File>> OpenTar(FileSystem& fs, const TarPlace& place, bool past_cache) {
  if (!place.pieces.empty())
    return std::shared_ptr<File>(std::make_shared<PiecesFile>(fs, place, past_cache));
  auto opened = past_cache ? OpenPastCache(fs, place.file) : fs.OpenForRead(place.file);
  if (!opened.ok()) return opened.status();
  return std::shared_ptr<File>(std::move(opened).value());
}

TarFilesWriter::TarFilesWriter(FileSystem& fs, WriteRing& ring, TarPlace place, uint64_t bytes)
    : fs_(fs),
      ring_(ring),
      paths_(FilesOf(place)),
      sizes_(place.pieces.empty() ? std::vector{bytes} : std::move(place.pieces)) {}

Status TarFilesWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!out_ || out_->bytes() == sizes_[next_ - 1]) {
      CAIRN_RETURN_IF_ERROR(Finish());
      if (next_ == paths_.size()) return InvalidArgument("{}: more bytes than its files have", paths_.back());
      CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs_, paths_[next_]));  // of a run that was killed
      CAIRN_ASSIGN_OR_RETURN(out_, StreamWriter::Create(fs_, ring_, paths_[next_], sizes_[next_]));
      ++next_;
    }
    const uint64_t room = sizes_[next_ - 1] - out_->bytes();
    const std::span part = bytes.first(std::min<uint64_t>(bytes.size(), room));
    CAIRN_RETURN_IF_ERROR(out_->Append(part));
    bytes = bytes.subspan(part.size());
  }
  return OkStatus();
}

Status TarFilesWriter::Finish() {
  const std::unique_ptr<StreamWriter> done = std::move(out_);
  return done ? done->Finish() : OkStatus();
}

}  // namespace cairn
