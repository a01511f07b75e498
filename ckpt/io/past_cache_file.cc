#include "ckpt/io/past_cache_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "ckpt/io/read_only_file_system.h"
#include "ckpt/io/write_ring.h"

namespace cairn {
namespace {

constexpr uint64_t kWindowBytes = 4 << 20;  // one read
constexpr size_t kMaxIdleWindows = 4;       // windows that are kept for the next reader

// Cuts any range into aligned reads of a window.
class AlignedReads final : public ReadOnlyFile {
 public:
  explicit AlignedReads(std::unique_ptr<File> file) : file_(std::move(file)) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    std::unique_ptr<WriteRing::Buffer> window = Take();
    const Status status = Read(*window, offset, bytes);
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdleWindows) idle_.push_back(std::move(window));
    return status;
  }
  const std::string& path() const override { return file_->path(); }

 private:
  std::unique_ptr<WriteRing::Buffer> Take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<WriteRing::Buffer>(kWindowBytes);
    std::unique_ptr<WriteRing::Buffer> window = std::move(idle_.back());
    idle_.pop_back();
    return window;
  }

  Status Read(WriteRing::Buffer& window, uint64_t offset, std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const uint64_t begin = PageDown(offset);
      const uint64_t size = std::min(kWindowBytes, PageUp(offset - begin + bytes.size()));
      CAIRN_RETURN_IF_ERROR(file_->ReadAt(begin, {window.data(), size}));
      const uint64_t count = std::min<uint64_t>(bytes.size(), begin + size - offset);
      std::memcpy(bytes.data(), window.data() + (offset - begin), count);
      bytes = bytes.subspan(count);
      offset += count;
    }
    return OkStatus();
  }

  const std::unique_ptr<File> file_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<WriteRing::Buffer>> idle_;  // one for each reader
};

}  // namespace

Result<std::unique_ptr<File>> OpenPastCache(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  const Direct direct = info.bytes % kPageBytes == 0 ? Direct::kAuto : Direct::kOff;
  CAIRN_ASSIGN_OR_RETURN(auto file, fs.OpenForRead(path, direct));
  // Only a hint: if the kernel ignores it, the reads that follow prove less.
  (void)::posix_fadvise(file->descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  if (!file->direct()) return file;
  return std::unique_ptr<File>(std::make_unique<AlignedReads>(std::move(file)));
}

}  // namespace cairn
