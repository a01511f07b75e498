#include "ckpt/job/peer_ranks.h"

#include <numeric>

namespace cairn {

Result<std::vector<std::string>> PeerRanks::GatherToRoot(std::string blob, std::string_view what) {
  const std::string name = NextName();
  if (rank() != 0) {
    peers_.Post(name, std::move(blob), 1);
    return std::vector<std::string>();
  }
  std::vector<int> others(size() - 1);
  std::iota(others.begin(), others.end(), 1);
  auto blobs = peers_.Take(others, name, seconds_);
  if (!blobs.ok()) return blobs.status().WithContext(std::string(what));
  blobs->insert(blobs->begin(), std::move(blob));
  return blobs;
}

Result<std::string> PeerRanks::BroadcastFromRoot(std::string blob, std::string_view what) {
  const std::string name = NextName();
  if (rank() == 0) {
    peers_.Post(name, blob, size() - 1);
    return blob;
  }
  constexpr int kRoot = 0;
  auto blobs = peers_.Take({&kRoot, 1}, name, seconds_);
  if (!blobs.ok()) return blobs.status().WithContext(std::string(what));
  return std::move(blobs->front());
}

}  // namespace cairn
