// Reads Megatron's indexed datasets, PREFIX.bin and PREFIX.idx, through mmap.
//
// Every number of the index is checked against the sizes of both files before anything is read through it, so
// that a damaged or hostile index is refused with its field and offset and never makes the reader touch
// memory outside a file. Source: indexed_format.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "runtime/data/indexed_format.h"
#include "runtime/data/mapped_file.h"

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
  uint64_t token_count() const { return tokens_.bytes().size() / SizeOf(token_type_); }

  // A digest of some pieces of the .bin file: it usually notices other tokens in a file of the same size.
  uint64_t TokensDigest() const;

  // Tokens of each sequence of `range`. Requires range.end <= sequence_count().
  std::vector<int32_t> SequenceLengths(SequenceRange range) const;
  // Tokens of one sequence. Requires i < sequence_count().
  int32_t SequenceLength(uint64_t i) const;
  // The sequences of document k. Requires k < document_count().
  SequenceRange Document(uint64_t k) const;

  // Copies tokens [offset, offset + out.size()) of sequence i. Requires i < sequence_count() and the range
  // inside it.
  void CopyTokens(uint64_t i, uint64_t offset, std::span<int64_t> out) const;

 private:
  IndexedDataset(std::string prefix, MappedFile index, MappedFile tokens)
      : prefix_(std::move(prefix)), index_(std::move(index)), tokens_(std::move(tokens)) {}

  Status CheckHeader();
  Status CheckSequences() const;
  Status CheckDocuments() const;
  int64_t SequencePointer(uint64_t i) const;
  int64_t DocumentEntry(uint64_t k) const;

  std::string prefix_;
  MappedFile index_;
  MappedFile tokens_;
  TokenType token_type_ = TokenType::kU16;
  uint64_t sequence_count_ = 0;
  uint64_t document_entries_ = 1;
};

}  // namespace cairn
