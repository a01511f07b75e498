// SHA-256, for the lists that `sha256sum -c` checks. Our own proofs use the step's XXH3 digests
// (ckpt/base/digest.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct SHA256state_st;

namespace cairn {

class Sha256 {
 public:
  Sha256();
  void Update(std::span<const std::byte> bytes);
  // 64 hex digits. Call once.
  std::string FinishHex();

 private:
  struct Free {
    void operator()(SHA256state_st* context) const;
  };
  std::unique_ptr<SHA256state_st, Free> context_;
};

}  // namespace cairn
