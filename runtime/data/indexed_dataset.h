// Reads Megatron's indexed datasets, PREFIX.bin and PREFIX.idx.
//
// Every number of the index is checked against the sizes of both files before anything is read through it, so
// that a damaged or hostile index is refused with its field and offset. Source: indexed_format.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "runtime/data/indexed_format.h"

namespace cairn {

// Half-open range of sequences.
struct SequenceRange {
  uint64_t begin = 0;
  uint64_t end = 0;  // exclusive
  uint64_t size() const { return end - begin; }
  bool operator==(const SequenceRange&) const = default;
};

// Constant after Open, so safe to read from several threads.
class IndexedDataset {
 public:
  // Errors: NotFound and IoError (a file), Corrupt (the field that contradicts the sizes), NotSupported (a
  // legacy or multimodal layout, a floating-point token type).
  static Result<IndexedDataset> Open(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return token_type_; }
  uint64_t sequence_count() const { return sequence_count_; }
  uint64_t document_count() const { return document_entries_ - 1; }
  uint64_t token_count() const { return token_bytes_ / SizeOf(token_type_); }

  // A digest of some pieces of the .bin file: it usually differs for other tokens in a file of the same size.
  uint64_t tokens_digest() const { return tokens_digest_; }

  // Tokens of each sequence of `range`. Requires range.end <= sequence_count(). Errors: IoError if a file was
  // truncated or its file system failed; so below.
  Result<std::vector<int32_t>> SequenceLengths(SequenceRange range) const;

  // Copies the tokens of sequence i from `offset` on, as many as exist and fit, and returns their number.
  // Requires i < sequence_count() and an offset within the sequence.
  Result<uint64_t> CopyTokens(uint64_t i, uint64_t offset, std::span<int64_t> out) const;

 private:
  explicit IndexedDataset(std::string prefix) : prefix_(std::move(prefix)) {}

  static Status Read(File& file, uint64_t offset, std::span<std::byte> bytes);
  // Numbers of the index.
  template <typename T>
  Result<std::vector<T>> Entries(uint64_t offset, uint64_t count) const;
  Status OpenFiles();
  Status CheckHeader();
  Status CheckSequences() const;
  Status CheckDocuments() const;
  Status DigestTokens();

  std::string prefix_;
  std::unique_ptr<File> index_;
  std::unique_ptr<File> tokens_;
  uint64_t index_bytes_ = 0;
  uint64_t token_bytes_ = 0;
  uint64_t tokens_digest_ = 0;
  TokenType token_type_ = TokenType::kU16;
  uint64_t sequence_count_ = 0;
  uint64_t document_entries_ = 1;
};

}  // namespace cairn
