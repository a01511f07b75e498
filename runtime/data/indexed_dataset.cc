// Open() maps both files and checks the whole index: the header against the size of the file, the sequences,
// which must follow each other up to the end of the .bin file, and the documents, which must ascend to the
// number of sequences. After that the getters rely on it. Arrays of the index may be unaligned, so numbers
// are copied out.

#include "runtime/data/indexed_dataset.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/digest.h"

namespace cairn {
namespace {

constexpr uint64_t kDigestPieces = 8;
constexpr uint64_t kDigestPieceBytes = 4096;

constexpr std::string_view kRemedy = "make the dataset again, or copy both files again from an intact copy";

// The arrays of the index are unaligned.
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

template <typename T>
void CopyAs(const std::byte* source, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, source + i * sizeof(T), sizeof(T));
    out[i] = value;
  }
}

}  // namespace

uint64_t IndexedDataset::TokensDigest() const {
  const std::span<const std::byte> bytes = tokens_.bytes();
  const uint64_t piece = std::min<uint64_t>(kDigestPieceBytes, bytes.size());
  std::string pieces;
  for (uint64_t i = 0; i < kDigestPieces; ++i) {  // the first at the start, the last at the end
    const uint64_t at = (bytes.size() - piece) / (kDigestPieces - 1) * i;
    const auto part = bytes.subspan(i + 1 < kDigestPieces ? at : bytes.size() - piece, piece);
    pieces.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return Hash64(pieces);
}

Result<IndexedDataset> IndexedDataset::Open(const std::string& prefix) {
  auto opened = MappedFile::Open(IndexPath(prefix));
  if (!opened.ok() && (prefix.ends_with(".bin") || prefix.ends_with(".idx")))
    return InvalidArgument("{}; give the prefix of both files: {}", opened.status().message(),
                           prefix.substr(0, prefix.size() - 4));
  CAIRN_ASSIGN_OR_RETURN(MappedFile index, std::move(opened));
  CAIRN_ASSIGN_OR_RETURN(MappedFile tokens, MappedFile::Open(TokensPath(prefix)));
  IndexedDataset dataset(prefix, std::move(index), std::move(tokens));
  CAIRN_RETURN_IF_ERROR(dataset.CheckHeader());
  CAIRN_RETURN_IF_ERROR(dataset.CheckSequences());
  CAIRN_RETURN_IF_ERROR(dataset.CheckDocuments());
  return dataset;
}

Status IndexedDataset::CheckHeader() {
  const std::string path = IndexPath(prefix_);
  const std::span<const std::byte> bytes = index_.bytes();
  CAIRN_RETURN_IF_ERROR(CheckMagic(path, bytes));
  if (bytes.size() < kIndexHeaderBytes)
    return Corrupt("{} has {} bytes, its header alone needs {}; {}", path, bytes.size(), kIndexHeaderBytes,
                   kRemedy);
  if (const auto version = Load<uint64_t>(bytes, 9); version != kIndexVersion)
    return NotSupported("{}: version at byte 9 is {}, known is {}", path, version, kIndexVersion);
  const auto code = Load<uint8_t>(bytes, 17);
  const TokenTypeRow* const type = FindTokenType(code);
  if (!type) return NotSupported("{}: token type at byte 17 is {}, known are 1 to 5 and 8", path, code);
  token_type_ = type->type;
  sequence_count_ = Load<uint64_t>(bytes, 18);
  document_entries_ = Load<uint64_t>(bytes, 26);
  // Bounded one by one first, so that the sum below cannot wrap around.
  const bool bounded = sequence_count_ <= bytes.size() / 12 && document_entries_ <= bytes.size() / 8;
  const uint64_t expected = bounded ? DocumentOffset(sequence_count_, document_entries_) : 0;
  if (bounded && sequence_count_ > 0 && bytes.size() == expected + sequence_count_)
    return NotSupported("{} carries a mode for each sequence (a multimodal dataset); only text is read",
                        path);
  if (!bounded || bytes.size() != expected)
    return Corrupt(
        "{} claims {} sequences (byte 18) and {} document entries (byte 26), which does not fit its {} "
        "bytes; {}",
        path, sequence_count_, document_entries_, bytes.size(), kRemedy);
  return OkStatus();
}

Status IndexedDataset::CheckSequences() const {
  const std::string path = IndexPath(prefix_);
  const uint64_t item_bytes = SizeOf(token_type_);
  const uint64_t stored = tokens_.bytes().size();
  uint64_t end = 0;
  for (uint64_t i = 0; i < sequence_count_; ++i) {
    const int32_t length = SequenceLength(i);
    if (length < 0)
      return Corrupt("{}: sequence {} has length {} (byte {}); {}", path, i, length, LengthOffset(i),
                     kRemedy);
    const int64_t pointer = SequencePointer(i);
    if (pointer < 0 || static_cast<uint64_t>(pointer) != end)
      return Corrupt(
          "{}: sequence {} begins at {} of the .bin file (byte {}), the ones before it end at {}; {}", path,
          i, pointer, PointerOffset(sequence_count_, i), end, kRemedy);
    end += static_cast<uint64_t>(length) * item_bytes;
    if (end > stored) break;
  }
  if (end != stored)
    return Corrupt("{} has {} bytes, {} describes {}{}; {}", TokensPath(prefix_), stored, path,
                   end > stored ? "at least " : "", end, kRemedy);
  return OkStatus();
}

Status IndexedDataset::CheckDocuments() const {
  const std::string path = IndexPath(prefix_);
  if (document_entries_ == 0)
    return Corrupt("{}: the document index (byte 26) is empty, it begins with 0; {}", path, kRemedy);
  int64_t previous = 0;
  for (uint64_t k = 0; k < document_entries_; ++k) {
    const int64_t entry = DocumentEntry(k);
    if (entry < previous || (k == 0 && entry != 0) || static_cast<uint64_t>(entry) > sequence_count_)
      return Corrupt("{}: document {} begins with sequence {} (byte {}), after {} and of {}; {}", path, k,
                     entry, DocumentOffset(sequence_count_, k), previous, sequence_count_, kRemedy);
    previous = entry;
  }
  if (static_cast<uint64_t>(previous) != sequence_count_)
    return Corrupt("{}: the document index ends at sequence {}, there are {}; {}", path, previous,
                   sequence_count_, kRemedy);
  return OkStatus();
}

int32_t IndexedDataset::SequenceLength(uint64_t i) const {
  return Load<int32_t>(index_.bytes(), LengthOffset(i));
}

int64_t IndexedDataset::SequencePointer(uint64_t i) const {
  return Load<int64_t>(index_.bytes(), PointerOffset(sequence_count_, i));
}

int64_t IndexedDataset::DocumentEntry(uint64_t k) const {
  return Load<int64_t>(index_.bytes(), DocumentOffset(sequence_count_, k));
}

std::vector<int32_t> IndexedDataset::SequenceLengths(SequenceRange range) const {
  assert(range.begin <= range.end && range.end <= sequence_count_);
  std::vector<int32_t> lengths(range.size());
  if (!lengths.empty())
    std::memcpy(lengths.data(), index_.bytes().data() + LengthOffset(range.begin), 4 * lengths.size());
  return lengths;
}

SequenceRange IndexedDataset::Document(uint64_t k) const {
  assert(k < document_count());
  return {static_cast<uint64_t>(DocumentEntry(k)), static_cast<uint64_t>(DocumentEntry(k + 1))};
}

void IndexedDataset::CopyTokens(uint64_t i, uint64_t offset, std::span<int64_t> out) const {
  assert(i < sequence_count_ && offset + out.size() <= static_cast<uint64_t>(SequenceLength(i)));
  const std::byte* source = tokens_.bytes().data() + SequencePointer(i) + offset * SizeOf(token_type_);
  switch (token_type_) {
    case TokenType::kU8:
      return CopyAs<uint8_t>(source, out);
    case TokenType::kI8:
      return CopyAs<int8_t>(source, out);
    case TokenType::kI16:
      return CopyAs<int16_t>(source, out);
    case TokenType::kI32:
      return CopyAs<int32_t>(source, out);
    case TokenType::kI64:
      return CopyAs<int64_t>(source, out);
    case TokenType::kU16:
      return CopyAs<uint16_t>(source, out);
  }
}

}  // namespace cairn
