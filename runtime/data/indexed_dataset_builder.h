// Writes an indexed dataset token by token, in memory that does not grow with it.
//
// Both files grow under temporary names and appear together at Finish: tokens first, the index, which makes
// them a dataset, last. The lengths go straight to their place in the index; Finish derives the pointers from
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"
#include "runtime/data/indexed_format.h"

namespace cairn {

// A file written front to back through one block of memory.
class AppendFile {
 public:
  explicit AppendFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

  Status Append(std::span<const std::byte> bytes);
  Status Flush();
  uint64_t size() const { return flushed_ + pending_.size(); }
  File& file() { return *file_; }

 private:
  std::unique_ptr<File> file_;
  std::vector<std::byte> pending_;
  uint64_t flushed_ = 0;
};

// Not thread-safe. A builder that is dropped before Finish removes what it wrote.
class IndexedDatasetBuilder {
 public:
  // Errors: AlreadyExists if PREFIX.bin or PREFIX.idx exists; NoSpace, IoError.
  static Result<IndexedDatasetBuilder> Create(FileSystem& fs, std::string prefix, TokenType type);

  IndexedDatasetBuilder(IndexedDatasetBuilder&&) = default;
  IndexedDatasetBuilder& operator=(IndexedDatasetBuilder&&) = delete;
  ~IndexedDatasetBuilder();

  // Appends to the document that is being written. Requires tokens that the type can hold.
  // Errors: InvalidArgument (a document of 2^31 tokens or more), NoSpace, IoError.
  Status Add(std::span<const int32_t> tokens);
  // Ends the document: one sequence of Megatron's.
  Status EndDocument();
  // Makes the dataset durable and visible. Nothing may be called after it. Requires an ended document.
  Status Finish();

  uint64_t document_count() const { return documents_; }
  uint64_t token_count() const { return tokens_; }

 private:
  IndexedDatasetBuilder(FileSystem& fs, std::string prefix, TokenType type)
      : fs_(&fs), prefix_(std::move(prefix)), type_(type) {}

  Status OpenFiles();
  Status CheckAbsent() const;
  Status AppendPointers();
  Status AppendDocuments();
  Status WriteHeader();
  Status Publish();

  FileSystem* fs_;
  std::string prefix_;
  TokenType type_;
  std::string temporary_suffix_;
  std::unique_ptr<AppendFile> bin_;  // both empty after a move or Finish
  std::unique_ptr<AppendFile> idx_;
  uint64_t documents_ = 0;
  uint64_t tokens_ = 0;
  uint64_t document_tokens_ = 0;
  std::vector<std::byte> encoded_;
};

}  // namespace cairn
