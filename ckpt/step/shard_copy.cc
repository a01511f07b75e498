#include "ckpt/step/shard_copy.h"

#include <cstring>

#include "ckpt/io/write_ring.h"
#include "ckpt/step/verify.h"

namespace cairn {
namespace {

// Bytes that come in order, written in large aligned writes.
class InOrder {
 public:
  InOrder(FileSystem& fs, File& file) : ring_(fs), file_(file), buffer_(ring_.Acquire()) {}

  void Append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t count = std::min<uint64_t>(bytes.size(), ring_.buffer_bytes() - buffer_->size);
      std::memcpy(buffer_->data() + buffer_->size, bytes.data(), count);
      buffer_->size += count;
      bytes = bytes.subspan(count);
      if (buffer_->size == ring_.buffer_bytes()) Submit();
    }
  }

  Status Finish() {
    if (buffer_->size > 0) Submit();
    return ring_.Drain();
  }

 private:
  void Submit() {
    const uint64_t bytes = buffer_->size;
    ring_.Submit(&file_, offset_, std::move(buffer_));
    offset_ += bytes;
    buffer_ = ring_.Acquire();
  }

  WriteRing ring_;
  File& file_;
  std::unique_ptr<WriteRing::Buffer> buffer_;
  uint64_t offset_ = 0;
};

}  // namespace

Status CopyShard(FileSystem& fs, const std::string& from_dir, const std::string& to_dir,
                 const ShardReceipt& receipt, const StepIdentity& identity, Direct direct) {
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.Create(JoinPath(to_dir, receipt.file.name), direct));
  CAIRN_RETURN_IF_ERROR(file->Allocate(receipt.file.bytes));
  VerifyReport report;
  {
    InOrder out(fs, *file);
    const Status read = VerifyShard(
        fs, from_dir, receipt.file, PackCatalog(receipt.catalog), 0, identity.run, identity.step, report,
        [&](std::span<const std::byte> bytes) {
          out.Append(bytes);
          return OkStatus();
        },
        /*may_map=*/false);
    const Status written = out.Finish();
    CAIRN_RETURN_IF_ERROR(read);
    CAIRN_RETURN_IF_ERROR(written);
  }
  if (!report.problems.empty()) return Corrupt("{}", ToString(report.problems[0]));
  CAIRN_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace cairn
