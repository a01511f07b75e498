#include "ckpt/base/background_sha256.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr size_t kPieceBytes = 512 << 10;  // stays in the second-level cache

}  // namespace

std::vector<std::byte> BackgroundSha256::TakeBuffer() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return {};
  std::vector<std::byte> buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

void BackgroundSha256::Update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    std::vector<std::byte> copy = TakeBuffer();
    copy.assign(piece.begin(), piece.end());
    (void)thread_.Push([this, copy = std::move(copy)](size_t) mutable {
      sha_.Update(copy);
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(copy));
      return OkStatus();
    });
    bytes = bytes.subspan(piece.size());
  }
}

std::string BackgroundSha256::FinishHex() {
  (void)thread_.Finish();
  return sha_.FinishHex();
}

}  // namespace cairn
