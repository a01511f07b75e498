#include "tools/archive/tar_writer.h"

#include <archive.h>
#include <archive_entry.h>

#include <cerrno>

namespace cairn {
namespace {

constexpr uint64_t kBlockBytes = 1 << 20;  // what libarchive hands over at once
constexpr uint64_t kHeadersBytes =
    512 * 4;  // a pax header for what ustar cannot say, its values, the ustar header
constexpr int kMode = 0644;

struct FreeEntry {
  void operator()(archive_entry* entry) const { archive_entry_free(entry); }
};

}  // namespace

uint64_t TarEntryBytes(uint64_t bytes) { return kHeadersBytes + (bytes + 511) / 512 * 512; }

Result<std::unique_ptr<TarWriter>> TarWriter::Create(FileSystem& fs, WriteRing& ring,
                                                     const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(auto out, StreamWriter::Create(fs, ring, path, /*bytes=*/0));
  std::unique_ptr<TarWriter> writer(new TarWriter(std::move(out)));
  CAIRN_RETURN_IF_ERROR(writer->out_status_);
  return writer;
}

TarWriter::TarWriter(std::unique_ptr<StreamWriter> out) : out_(std::move(out)), writer_(archive_write_new()) {
  archive_write_set_format_pax_restricted(writer_);
  archive_write_set_bytes_per_block(writer_, kBlockBytes);
  archive_write_set_bytes_in_last_block(writer_, kPageBytes);
  const auto write = [](archive* a, void* self, const void* data, size_t size) -> la_ssize_t {
    auto& out = *static_cast<TarWriter*>(self);
    out.out_status_ = out.out_->Append({static_cast<const std::byte*>(data), size});
    if (out.out_status_.ok()) return static_cast<la_ssize_t>(size);
    archive_set_error(a, EIO, "write failed");
    return -1;
  };
  out_status_ = Check(archive_write_open(writer_, this, nullptr, write, nullptr));
}

TarWriter::~TarWriter() {
  archive_write_fail(writer_);  // an unfinished tar gets no end marker
  archive_write_free(writer_);
}

Status TarWriter::Check(int64_t result) {
  if (result >= ARCHIVE_OK) return OkStatus();
  if (!out_status_.ok()) return out_status_;
  return IoError("tar entry {}: {}", entry_, archive_error_string(writer_));
}

Status TarWriter::Begin(const std::string& name, uint64_t bytes, int64_t modified_unix_seconds) {
  CAIRN_RETURN_IF_ERROR(EndEntry());
  entry_ = name;
  missing_bytes_ = bytes;
  const std::unique_ptr<archive_entry, FreeEntry> entry(archive_entry_new());
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), kMode);
  archive_entry_set_mtime(entry.get(), modified_unix_seconds, 0);
  return Check(archive_write_header(writer_, entry.get()));
}

Status TarWriter::Write(std::span<const std::byte> bytes) {
  if (bytes.size() > missing_bytes_)
    return InvalidArgument("tar entry {}: more bytes than it was said to have", entry_);
  missing_bytes_ -= bytes.size();
  return Check(archive_write_data(writer_, bytes.data(), bytes.size()));
}

Status TarWriter::EndEntry() {
  if (missing_bytes_ == 0) return OkStatus();
  return InvalidArgument("tar entry {}: {} bytes are missing", entry_, missing_bytes_);
}

Result<uint64_t> TarWriter::Finish() {
  CAIRN_RETURN_IF_ERROR(EndEntry());
  CAIRN_RETURN_IF_ERROR(Check(archive_write_close(writer_)));
  CAIRN_RETURN_IF_ERROR(out_->Finish());
  return out_->bytes();
}

}  // namespace cairn
