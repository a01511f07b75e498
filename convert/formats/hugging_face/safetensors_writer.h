// Writes one safetensors file: u64 length of the header, the header as JSON, then the tensors without gaps.
//
// Order of header and data is the reference writer's: wide types first, then by name. Tensors can be filled
// in any order. The file is not durable, nor whole, before Finish(). Source: the format's README
// (huggingface/safetensors); https://huggingface.co/docs/safetensors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/base/box.h"
#include "ckpt/base/dtype.h"
#include "ckpt/io/paged_file.h"
#include "convert/stream/fingerprint.h"

namespace cairn {

struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Dims shape;
  uint64_t bytes() const { return shape.Volume() * SizeOf(dtype); }
};

// Text only; "format": "pt" is added, since some loaders refuse a file without it.
using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsLayout {
  std::string header;             // with its length before it, padded to a multiple of 8
  std::vector<uint64_t> offsets;  // of each entry, as given, from the start of the file
  uint64_t file_bytes = 0;
};

// Pure. Errors: InvalidArgument (a name twice, or one that the format reserves; a header over the format's
// limit).
Result<SafetensorsLayout> LayOutSafetensors(const std::vector<SafetensorsEntry>& entries,
                                            const SafetensorsMetadata& metadata);

class SafetensorsWriter {
 public:
  // Creates `path` and reserves its space. `metadata` may have placeholders for what Finish() will know.
  // `ring` must outlive the writer.
  static Result<std::unique_ptr<SafetensorsWriter>> Create(FileSystem& fs, WriteRing& ring,
                                                           const std::string& path,
                                                           std::vector<SafetensorsEntry> entries,
                                                           const SafetensorsMetadata& metadata);
  // `offset` counts bytes from the start of entry `index`; whole elements. Each is written once; who writes
  // sees to it. Stretches that follow each other become large writes.
  Status Write(size_t index, uint64_t offset, std::span<const std::byte> bytes);
  // Gives the buffer back that the last stretches are gathered in; they may go on after it.
  Status Pause() { return file_->Flush(cursor_); }
  // Header, sync, close. Requires every entry to be written, and a header as long as at Create().
  // Errors: InvalidArgument where bytes are missing.
  Status Finish(const SafetensorsMetadata& metadata);
  // After Finish(): reads the file back, in a window of memory, and compares it with what was written.
  // Returns its SHA-256, 64 hex digits. `progress` is told the bytes of each read.
  // Errors: Corrupt naming the tensor; those of the disk.
  Result<std::string> Prove(FileSystem& fs, const std::function<void(uint64_t)>& progress) const;

  uint64_t file_bytes() const { return layout_.file_bytes; }

 private:
  SafetensorsWriter() = default;

  std::vector<SafetensorsEntry> entries_;
  std::vector<TensorFingerprint> sums_;  // of what was written of each
  SafetensorsLayout layout_;
  std::unique_ptr<PagedFile> file_;
  PagedFile::Cursor cursor_;
  uint64_t written_bytes_ = 0;
};

}  // namespace cairn
