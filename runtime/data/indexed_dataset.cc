// Open() checks the whole index, which it reads in blocks: the header against the size of the file, the
// sequences, which must follow each other up to the end of the .bin file, and the documents, which must
// ascend to the number of sequences. Later reads rely on it. They go through pread and the page cache, so a
// file that was truncated meanwhile is a failed read, where a mapping would be a signal.

#include "runtime/data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ckpt/base/digest.h"

namespace cairn {
namespace {

constexpr uint64_t kBlockEntries = 1 << 16;  // of an array of the index that are read at once
constexpr uint64_t kDigestPieces = 8;
constexpr uint64_t kDigestPieceBytes = 4096;

constexpr std::string_view kRemedy = "make the dataset again, or copy both files again from an intact copy";

// The fields of the header are not aligned.
template <typename T>
T Load(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

uint64_t LengthOffset(uint64_t i) { return kIndexHeaderBytes + 4 * i; }
uint64_t PointerOffset(uint64_t sequences, uint64_t i) { return kIndexHeaderBytes + 4 * sequences + 8 * i; }
uint64_t DocumentOffset(uint64_t sequences, uint64_t k) { return kIndexHeaderBytes + 12 * sequences + 8 * k; }

Status CheckMagic(const std::string& path, std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kLegacyIndexMagic))
    return NotSupported(
        "{} is in the legacy cached/lazy layout (magic TNTIDX); preprocess the text again with cairn data",
        path);
  if (!text.starts_with(kIndexMagic))
    return Corrupt(
        "{} does not begin with MMIDIDX, so it is not a Megatron index; give the prefix of a .bin/.idx pair",
        path);
  return OkStatus();
}

}  // namespace

Result<IndexedDataset> IndexedDataset::Open(const std::string& prefix) {
  IndexedDataset dataset(prefix);
  const Status opened = dataset.OpenFiles();
  if (!opened.ok() && !dataset.index_ && (prefix.ends_with(".bin") || prefix.ends_with(".idx")))
    return InvalidArgument("{}; give the prefix of both files: {}", opened.message(),
                           prefix.substr(0, prefix.size() - 4));
  CAIRN_RETURN_IF_ERROR(opened);
  CAIRN_RETURN_IF_ERROR(dataset.CheckHeader());
  CAIRN_RETURN_IF_ERROR(dataset.CheckSequences());
  CAIRN_RETURN_IF_ERROR(dataset.CheckDocuments());
  CAIRN_RETURN_IF_ERROR(dataset.DigestTokens());
  return dataset;
}

Status IndexedDataset::OpenFiles() {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const FileInfo index, fs.Stat(IndexPath(prefix_)));
  CAIRN_ASSIGN_OR_RETURN(index_, fs.OpenForRead(IndexPath(prefix_)));
  CAIRN_ASSIGN_OR_RETURN(const FileInfo tokens, fs.Stat(TokensPath(prefix_)));
  CAIRN_ASSIGN_OR_RETURN(tokens_, fs.OpenForRead(TokensPath(prefix_)));
  index_bytes_ = index.bytes;
  token_bytes_ = tokens.bytes;
  return OkStatus();
}

Status IndexedDataset::Read(File& file, uint64_t offset, std::span<std::byte> bytes) {
  const Status read = file.ReadAt(offset, bytes);
  if (read.ok()) return read;
  return IoError(
      "{} was truncated, or its file system failed, while it was read; bring it back whole, then resume ({})",
      file.path(), read.message());
}

template <typename T>
Result<std::vector<T>> IndexedDataset::Entries(uint64_t offset, uint64_t count) const {
  std::vector<T> entries(count);
  CAIRN_RETURN_IF_ERROR(Read(*index_, offset, std::as_writable_bytes(std::span(entries))));
  return entries;
}

Status IndexedDataset::DigestTokens() {
  const uint64_t piece = std::min<uint64_t>(kDigestPieceBytes, token_bytes_);
  std::string pieces(kDigestPieces * piece, '\0');
  const std::span<std::byte> out = std::as_writable_bytes(std::span(pieces));
  for (uint64_t i = 0; i < kDigestPieces; ++i) {  // the first at the start, the last at the end
    const uint64_t at = (token_bytes_ - piece) / (kDigestPieces - 1) * i;
    CAIRN_RETURN_IF_ERROR(
        Read(*tokens_, i + 1 < kDigestPieces ? at : token_bytes_ - piece, out.subspan(i * piece, piece)));
  }
  tokens_digest_ = Hash64(pieces);
  return OkStatus();
}

Status IndexedDataset::CheckHeader() {
  const std::string path = IndexPath(prefix_);
  std::array<std::byte, kIndexHeaderBytes> header{};
  const auto bytes = std::span(header).first(std::min<uint64_t>(kIndexHeaderBytes, index_bytes_));
  CAIRN_RETURN_IF_ERROR(Read(*index_, 0, bytes));
  CAIRN_RETURN_IF_ERROR(CheckMagic(path, bytes));
  if (bytes.size() < kIndexHeaderBytes)
    return Corrupt("{} has {} bytes, but its header needs {}; {}", path, index_bytes_, kIndexHeaderBytes,
                   kRemedy);
  if (const auto version = Load<uint64_t>(bytes, 9); version != kIndexVersion)
    return NotSupported("{}: version at byte 9 is {}, but must be {}", path, version, kIndexVersion);
  const auto code = Load<uint8_t>(bytes, 17);
  const TokenTypeRow* const type = FindTokenType(code);
  if (!type) return NotSupported("{}: the token type at byte 17 is {}; it must be 1 to 5 or 8", path, code);
  token_type_ = type->type;
  sequence_count_ = Load<uint64_t>(bytes, 18);
  document_entries_ = Load<uint64_t>(bytes, 26);
  // Bounded one by one first, so that the sum below cannot wrap around.
  const bool bounded = sequence_count_ <= index_bytes_ / 12 && document_entries_ <= index_bytes_ / 8;
  const uint64_t expected = bounded ? DocumentOffset(sequence_count_, document_entries_) : 0;
  if (bounded && sequence_count_ > 0 && index_bytes_ == expected + sequence_count_)
    return NotSupported("{} carries a mode for each sequence (a multimodal dataset); only text is read",
                        path);
  if (!bounded || index_bytes_ != expected)
    return Corrupt(
        "{} claims {} sequences (byte 18) and {} document entries (byte 26), which does not fit its {} "
        "bytes; {}",
        path, sequence_count_, document_entries_, index_bytes_, kRemedy);
  return OkStatus();
}

Status IndexedDataset::CheckSequences() const {
  const std::string path = IndexPath(prefix_);
  const uint64_t item_bytes = SizeOf(token_type_);
  uint64_t end = 0;
  for (uint64_t begin = 0; begin < sequence_count_ && end <= token_bytes_; begin += kBlockEntries) {
    const uint64_t count = std::min(kBlockEntries, sequence_count_ - begin);
    CAIRN_ASSIGN_OR_RETURN(const auto lengths, Entries<int32_t>(LengthOffset(begin), count));
    CAIRN_ASSIGN_OR_RETURN(const auto pointers,
                           Entries<int64_t>(PointerOffset(sequence_count_, begin), count));
    for (uint64_t k = 0; k < count && end <= token_bytes_; ++k) {
      const uint64_t i = begin + k;
      if (lengths[k] < 0)
        return Corrupt("{}: sequence {} has length {} (byte {}); {}", path, i, lengths[k], LengthOffset(i),
                       kRemedy);
      if (pointers[k] < 0 || static_cast<uint64_t>(pointers[k]) != end)
        return Corrupt(
            "{}: sequence {} begins at {} of the .bin file (byte {}), but the ones before it end at {}; {}",
            path, i, pointers[k], PointerOffset(sequence_count_, i), end, kRemedy);
      end += static_cast<uint64_t>(lengths[k]) * item_bytes;
    }
  }
  if (end != token_bytes_)
    return Corrupt("{} has {} bytes, but {} describes {}{}; {}", TokensPath(prefix_), token_bytes_, path,
                   end > token_bytes_ ? "at least " : "", end, kRemedy);
  return OkStatus();
}

Status IndexedDataset::CheckDocuments() const {
  const std::string path = IndexPath(prefix_);
  if (document_entries_ == 0)
    return Corrupt("{}: the document index (byte 26) is empty; it must begin with 0; {}", path, kRemedy);
  int64_t previous = 0;
  for (uint64_t begin = 0; begin < document_entries_; begin += kBlockEntries) {
    const uint64_t count = std::min(kBlockEntries, document_entries_ - begin);
    CAIRN_ASSIGN_OR_RETURN(const auto entries,
                           Entries<int64_t>(DocumentOffset(sequence_count_, begin), count));
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t entry = entries[i];
      const uint64_t k = begin + i;
      if (entry < previous || (k == 0 && entry != 0) || static_cast<uint64_t>(entry) > sequence_count_)
        return Corrupt("{}: document {} begins with sequence {} (byte {}), after {} and of {}; {}", path, k,
                       entry, DocumentOffset(sequence_count_, k), previous, sequence_count_, kRemedy);
      previous = entry;
    }
  }
  if (static_cast<uint64_t>(previous) != sequence_count_)
    return Corrupt("{}: the document index ends at sequence {}, but there are {}; {}", path, previous,
                   sequence_count_, kRemedy);
  return OkStatus();
}

Result<std::vector<int32_t>> IndexedDataset::SequenceLengths(SequenceRange range) const {
  assert(range.begin <= range.end && range.end <= sequence_count_);
  return Entries<int32_t>(LengthOffset(range.begin), range.size());
}

Result<uint64_t> IndexedDataset::CopyTokens(uint64_t i, uint64_t offset, std::span<int64_t> out) const {
  assert(i < sequence_count_);
  CAIRN_ASSIGN_OR_RETURN(const auto length, Entries<int32_t>(LengthOffset(i), 1));
  CAIRN_ASSIGN_OR_RETURN(const auto pointer, Entries<int64_t>(PointerOffset(sequence_count_, i), 1));
  if (length[0] < 0 || static_cast<uint64_t>(length[0]) < offset)
    return IoError("{} was changed while it was read", index_->path());
  out = out.first(std::min<uint64_t>(out.size(), static_cast<uint64_t>(length[0]) - offset));
  const uint64_t item_bytes = SizeOf(token_type_);
  std::vector<std::byte> stored(out.size() * item_bytes);
  CAIRN_RETURN_IF_ERROR(Read(*tokens_, static_cast<uint64_t>(pointer[0]) + offset * item_bytes, stored));
  WithTokenOf(token_type_, [&]<typename T>(T value) {
    for (size_t i = 0; i < out.size(); ++i) {
      std::memcpy(&value, stored.data() + i * sizeof(T), sizeof(T));
      out[i] = value;
    }
  });
  return out.size();
}

}  // namespace cairn
