// SHA-256 of a stream in its own thread: it is the slowest of the digests, and its stream waits for nobody.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/sha256.h"
#include "ckpt/base/worker_pool.h"

namespace cairn {

class BackgroundSha256 {
 public:
  // Returns once copied; waits while too much is queued.
  void Update(std::span<const std::byte> bytes);
  // 64 hex digits. Call once.
  std::string FinishHex();

 private:
  std::vector<std::byte> TakeBuffer();

  Sha256 sha_;
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> free_;
  WorkerPool thread_{1, /*waiting=*/16};  // last: it uses the others
};

}  // namespace cairn
