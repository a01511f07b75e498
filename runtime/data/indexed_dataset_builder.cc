// Tokens go straight to the .bin file, and the length of each document straight to the .idx file, after room
// for the header. Finish() reads the lengths back block by block and appends the pointers, appends the
// document index, and fills in the header. Both files are synced before the first rename, and the index is
// renamed last, once the name of the tokens is durable, because it makes the two files a dataset.

#include "runtime/data/indexed_dataset_builder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 1 << 20;  // one write; larger ones are not faster

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

void Encode(TokenType type, std::span<const int32_t> tokens, std::vector<std::byte>& out) {
  out.resize(tokens.size() * SizeOf(type));
  WithTokenOf(type, [&]<typename T>(T value) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      value = static_cast<T>(tokens[i]);
      std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
}

std::string DirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Different from every other writer's, on this machine or another one.
std::string TemporarySuffix() {
  std::random_device device;
  return fmt::format(".partial-{:08x}{:08x}", device(), device());
}

}  // namespace

Status AppendFile::Append(std::span<const std::byte> bytes) {
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  return pending_.size() < kBlockBytes ? OkStatus() : Flush();
}

Status AppendFile::Flush() {
  CAIRN_RETURN_IF_ERROR(file_->WriteAt(flushed_, pending_));
  flushed_ += pending_.size();
  pending_.clear();
  return OkStatus();
}

Result<IndexedDatasetBuilder> IndexedDatasetBuilder::Create(FileSystem& fs, std::string prefix,
                                                            TokenType type) {
  IndexedDatasetBuilder builder(fs, std::move(prefix), type);
  CAIRN_RETURN_IF_ERROR(builder.CheckAbsent());
  builder.temporary_suffix_ = TemporarySuffix();
  CAIRN_RETURN_IF_ERROR(builder.OpenFiles());
  return builder;
}

IndexedDatasetBuilder::~IndexedDatasetBuilder() {
  if (bin_) (void)fs_->RemoveFile(bin_->file().path());
  if (idx_) (void)fs_->RemoveFile(idx_->file().path());
}

Status IndexedDatasetBuilder::CheckAbsent() const {
  for (const std::string& path : {TokensPath(prefix_), IndexPath(prefix_)}) {
    const Result<FileInfo> info = fs_->Stat(path);
    if (info.ok())
      return AlreadyExists("{} exists and is never overwritten; choose another prefix or remove it", path);
    if (info.status().kind() != StatusKind::kNotFound) return info.status();
  }
  return OkStatus();
}

Status IndexedDatasetBuilder::OpenFiles() {
  CAIRN_ASSIGN_OR_RETURN(auto bin, fs_->Create(TokensPath(prefix_) + temporary_suffix_));
  bin_ = std::make_unique<AppendFile>(std::move(bin));
  CAIRN_ASSIGN_OR_RETURN(auto idx, fs_->Create(IndexPath(prefix_) + temporary_suffix_));
  idx_ = std::make_unique<AppendFile>(std::move(idx));
  const std::byte header[kIndexHeaderBytes]{};  // overwritten by Finish
  return idx_->Append(header);
}

Status IndexedDatasetBuilder::Add(std::span<const int32_t> tokens) {
  if (document_tokens_ + tokens.size() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
    return InvalidArgument(
        "document {} has more than 2^31 - 1 tokens, which the format cannot hold; split it", documents_);
  document_tokens_ += tokens.size();
  Encode(type_, tokens, encoded_);
  return bin_->Append(encoded_);
}

Status IndexedDatasetBuilder::EndDocument() {
  const auto length = static_cast<int32_t>(document_tokens_);
  tokens_ += document_tokens_;
  document_tokens_ = 0;
  ++documents_;
  return idx_->Append(BytesOf(length));
}

Status IndexedDatasetBuilder::Finish() {
  assert(document_tokens_ == 0);
  CAIRN_RETURN_IF_ERROR(bin_->Flush());
  CAIRN_RETURN_IF_ERROR(idx_->Flush());
  CAIRN_RETURN_IF_ERROR(AppendPointers());
  CAIRN_RETURN_IF_ERROR(AppendDocuments());
  CAIRN_RETURN_IF_ERROR(idx_->Flush());
  CAIRN_RETURN_IF_ERROR(WriteHeader());
  return Publish();
}

// Reads the lengths back block by block: they come before the pointers.
Status IndexedDatasetBuilder::AppendPointers() {
  std::vector<int32_t> lengths;
  int64_t pointer = 0;
  for (uint64_t done = 0; done < documents_; done += lengths.size()) {
    lengths.resize(std::min<uint64_t>(kBlockBytes / sizeof(int32_t), documents_ - done));
    const uint64_t offset = kIndexHeaderBytes + done * sizeof(int32_t);
    CAIRN_RETURN_IF_ERROR(idx_->file().ReadAt(offset, std::as_writable_bytes(std::span(lengths))));
    for (const int32_t length : lengths) {
      CAIRN_RETURN_IF_ERROR(idx_->Append(BytesOf(pointer)));
      pointer += static_cast<int64_t>(length) * static_cast<int64_t>(SizeOf(type_));
    }
  }
  return OkStatus();
}

// One sequence a document, so document k begins with sequence k.
Status IndexedDatasetBuilder::AppendDocuments() {
  for (uint64_t k = 0; k <= documents_; ++k) CAIRN_RETURN_IF_ERROR(idx_->Append(BytesOf(k)));
  return OkStatus();
}

Status IndexedDatasetBuilder::WriteHeader() {
  std::array<std::byte, kIndexHeaderBytes> header{};
  const uint64_t document_entries = documents_ + 1;
  std::memcpy(header.data(), kIndexMagic.data(), kIndexMagic.size());
  std::memcpy(header.data() + 9, &kIndexVersion, 8);
  std::memcpy(header.data() + 17, &type_, 1);
  std::memcpy(header.data() + 18, &documents_, 8);
  std::memcpy(header.data() + 26, &document_entries, 8);
  return idx_->file().WriteAt(0, header);
}

Status IndexedDatasetBuilder::Publish() {
  for (AppendFile* file : {bin_.get(), idx_.get()}) {
    CAIRN_RETURN_IF_ERROR(file->file().Sync());
    CAIRN_RETURN_IF_ERROR(file->file().Close());
  }
  CAIRN_RETURN_IF_ERROR(CheckAbsent());
  CAIRN_RETURN_IF_ERROR(fs_->RenameNew(bin_->file().path(), TokensPath(prefix_)));
  bin_.reset();
  Status renamed = fs_->SyncDir(DirectoryOf(prefix_));
  if (renamed.ok()) renamed = fs_->RenameNew(idx_->file().path(), IndexPath(prefix_));
  if (!renamed.ok()) {
    (void)fs_->RemoveFile(TokensPath(prefix_));  // tokens without an index would only block a second try
    return renamed;
  }
  idx_.reset();
  return fs_->SyncDir(DirectoryOf(prefix_));
}

}  // namespace cairn
