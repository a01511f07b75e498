// Start() ends the entry before and writes the next header; Write() counts its bytes. An entry of unknown
// size gets a header for the largest one, and EndEntry() keeps the true header as a patch. Both must be
// equally long, so the header is an extended one from the beginning if the largest size needs that.
// FinishPiece() pads the file, waits for what is in flight, and writes the patches before the file is synced.
// An entry that could make a file too large starts the next piece.

#include "tools/archive/tar/tar_writer.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>

#include "tools/archive/tar/tar_index.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

constexpr uint64_t kEndBytes = 2 * kTarBlockBytes;      // zeros that end a tar
constexpr uint64_t kHeadersBytes = 4 * kTarBlockBytes;  // a pax header, its values, the ustar header
constexpr uint64_t kUstarBytes = uint64_t{8} << 30;     // a ustar header cannot hold this size

struct FreeEntry {
  void operator()(archive_entry* entry) const { archive_entry_free(entry); }
};
struct FreeWriter {
  void operator()(archive* writer) const { archive_write_free(writer); }
};

// The size of a file with this many bytes of entries.
uint64_t PieceBytes(uint64_t entries) { return PageUp(entries + kEndBytes); }

// Receives a header and then refuses the rest: closing would continue with all of the entry's bytes, and
// archive_write_fail() before it leaks memory of archive_write_open().
struct HeaderSink {
  std::string text;
  bool whole = false;

  static la_ssize_t Take(archive*, void* sink, const void* data, size_t size) {
    auto* const self = static_cast<HeaderSink*>(sink);
    if (self->whole) return -1;
    self->text.append(static_cast<const char*>(data), size);
    return static_cast<la_ssize_t>(size);
  }
};

bool IsAscii(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Names that are not ASCII are declared as bytes of any encoding: libarchive would translate them from the
// locale's encoding, and no locale is set.
void SetFormat(archive* writer, const TarWriter::Header& header, bool extended) {
  extended || header.of_tree ? archive_write_set_format_pax(writer)
                             : archive_write_set_format_pax_restricted(writer);
  if (!IsAscii(header.name) || !IsAscii(header.target))
    archive_write_set_format_option(writer, "pax", "hdrcharset", "BINARY");
  archive_write_set_bytes_per_block(writer, 0);  // handed over at once
}

// `extended`: forces a pax header even if the size needs none, by a time below the second, or by an access
// time if that time matters.
void SetFacts(archive_entry* entry, const TarWriter::Header& header, bool extended) {
  const EntryFacts& facts = header.facts;
  archive_entry_set_perm(entry, static_cast<mode_t>(facts.mode));
  archive_entry_set_mtime(entry, facts.modified_unix_seconds,
                          header.of_tree ? static_cast<long>(facts.modified_nanoseconds)
                          : extended     ? 1
                                         : 0);
  if (!header.of_tree) return;
  archive_entry_set_uid(entry, facts.user);
  archive_entry_set_gid(entry, facts.group);
  if (extended) archive_entry_set_atime(entry, facts.modified_unix_seconds, 1);
}

// libarchive's header of an entry.
Result<std::string> HeaderOf(const TarWriter::Header& header, uint64_t bytes, bool extended) {
  HeaderSink sink;  // outlives the writer
  const std::unique_ptr<archive, FreeWriter> writer(archive_write_new());
  SetFormat(writer.get(), header, extended);
  const std::unique_ptr<archive_entry, FreeEntry> entry(archive_entry_new());
  archive_entry_set_pathname(entry.get(), header.name.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes));
  archive_entry_set_filetype(entry.get(), header.kind == EntryKind::kFile        ? AE_IFREG
                                          : header.kind == EntryKind::kDirectory ? AE_IFDIR
                                                                                 : AE_IFLNK);
  if (header.kind == EntryKind::kLink) archive_entry_set_symlink(entry.get(), header.target.c_str());
  SetFacts(entry.get(), header, extended);
  const bool written =
      archive_write_open(writer.get(), &sink, nullptr, HeaderSink::Take, nullptr) == ARCHIVE_OK &&
      archive_write_header(writer.get(), entry.get()) == ARCHIVE_OK;
  sink.whole = true;
  if (!written) return IoError("tar entry {}: {}", header.name, archive_error_string(writer.get()));
  return std::move(sink.text);
}

}  // namespace

uint64_t TarEntryBytes(uint64_t bytes) { return kHeadersBytes + TarBlocksBytes(bytes); }

uint64_t CountTarPieces(const std::vector<uint64_t>& entry_bytes, uint64_t most) {
  uint64_t pieces = 1, piece = 0;
  for (const uint64_t bytes : entry_bytes) {
    if (most > 0 && piece > 0 && PieceBytes(piece + TarEntryBytes(bytes)) > most) {
      ++pieces;
      piece = 0;
    }
    piece += TarEntryBytes(bytes);
  }
  return pieces;
}

Result<std::unique_ptr<TarWriter>> TarWriter::Create(FileSystem& fs, WriteRing& ring, const std::string& path,
                                                     uint64_t most) {
  std::unique_ptr<TarWriter> writer(new TarWriter(fs, ring, path, most));
  CAIRN_RETURN_IF_ERROR(writer->BeginPiece());
  return writer;
}

Status TarWriter::BeginPiece() {
  const std::string path = TarPieceName(path_, pieces_.size() + 1);
  if (!pieces_.empty()) CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs_, path));  // of a run that was killed
  begin_ += pieces_.empty() ? 0 : pieces_.back();
  CAIRN_ASSIGN_OR_RETURN(out_, StreamWriter::Create(fs_, ring_, path, /*bytes=*/0));
  return OkStatus();
}

Status TarWriter::Start(Entry entry) {
  CAIRN_RETURN_IF_ERROR(EndEntry());
  const bool extended = entry.open_end && entry.most >= kUstarBytes;
  CAIRN_ASSIGN_OR_RETURN(const std::string header, HeaderOf(entry.header, entry.most, extended));
  const uint64_t with_entry = out_->bytes() + header.size() + TarBlocksBytes(entry.most);
  if (most_ > 0 && out_->bytes() > 0 && PieceBytes(with_entry) > most_) {
    CAIRN_RETURN_IF_ERROR(FinishPiece());
    CAIRN_RETURN_IF_ERROR(BeginPiece());
  }
  entry.header_offset = out_->bytes();
  entry.header_bytes = header.size();
  entry_ = std::move(entry);
  return out_->Append(std::as_bytes(std::span(header)));
}

Status TarWriter::Begin(Header header, uint64_t bytes) {
  return Start({.header = std::move(header), .most = bytes});
}

Status TarWriter::BeginUpTo(Header header, uint64_t bytes) {
  return Start({.header = std::move(header), .most = bytes, .open_end = true});
}

Status TarWriter::Begin(const std::string& name, uint64_t bytes, int64_t modified_unix_seconds) {
  return Begin({.name = name, .facts = {.modified_unix_seconds = modified_unix_seconds}}, bytes);
}

Status TarWriter::Write(std::span<const std::byte> bytes) {
  if (bytes.size() > entry_.most - entry_.written)
    return InvalidArgument("tar entry {}: it has more bytes than announced", entry_.header.name);
  entry_.written += bytes.size();
  return out_->Append(bytes);
}

Status TarWriter::Append(std::span<const std::byte> blocks) {
  CAIRN_RETURN_IF_ERROR(EndEntry());
  return out_->Append(blocks);
}

Status TarWriter::EndEntry() {
  if (entry_.open_end && entry_.written != entry_.most) {
    CAIRN_ASSIGN_OR_RETURN(std::string header,
                           HeaderOf(entry_.header, entry_.written, entry_.most >= kUstarBytes));
    if (header.size() != entry_.header_bytes)
      return NotSupported("tar entry {}: its header changed from {} to {} bytes", entry_.header.name,
                          entry_.header_bytes, header.size());
    patches_.push_back({entry_.header_offset, std::move(header)});
  } else if (entry_.written != entry_.most) {
    return InvalidArgument("tar entry {}: {} bytes of it are missing", entry_.header.name,
                           entry_.most - entry_.written);
  }
  entry_.open_end = false;
  entry_.most = entry_.written;
  return Zeros((kTarBlockBytes - offset() % kTarBlockBytes) % kTarBlockBytes);
}

Status TarWriter::Zeros(uint64_t bytes) {
  static constexpr std::array<std::byte, kPageBytes> kZeros{};
  for (uint64_t left = bytes; left > 0; left -= std::min<uint64_t>(left, kZeros.size()))
    CAIRN_RETURN_IF_ERROR(out_->Append({kZeros.data(), std::min<uint64_t>(left, kZeros.size())}));
  return OkStatus();
}

Result<uint64_t> TarWriter::Finish() {
  CAIRN_RETURN_IF_ERROR(EndEntry());
  CAIRN_RETURN_IF_ERROR(FinishPiece());
  return begin_ + pieces_.back();
}

Status TarWriter::FinishPiece() {
  const uint64_t bytes = PieceBytes(out_->bytes());
  CAIRN_RETURN_IF_ERROR(Zeros(bytes - out_->bytes()));
  if (!patches_.empty()) {
    CAIRN_RETURN_IF_ERROR(out_->Drain());
    // Through the page cache, since headers are not whole pages.
    CAIRN_ASSIGN_OR_RETURN(const auto file,
                           fs_.OpenForWrite(TarPieceName(path_, pieces_.size() + 1), Direct::kOff));
    for (const Patch& patch : patches_)
      CAIRN_RETURN_IF_ERROR(file->WriteAt(patch.offset, std::as_bytes(std::span(patch.header))));
    CAIRN_RETURN_IF_ERROR(file->Sync());
    CAIRN_RETURN_IF_ERROR(file->Close());
    patches_.clear();
  }
  CAIRN_RETURN_IF_ERROR(out_->Finish());
  pieces_.push_back(bytes);
  return OkStatus();
}

}  // namespace cairn
