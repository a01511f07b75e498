// Bytes in memory as a File, for readers that seek.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "ckpt/file_system.h"

namespace cairn {

class MemoryFile : public File {
 public:
  explicit MemoryFile(std::string_view bytes) : bytes_(bytes) {}

  Status WriteAt(uint64_t, std::span<const std::byte>) override { return NotSupported("read only"); }
  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    if (offset > bytes_.size() || bytes.size() > bytes_.size() - offset)
      return Corrupt("the file ends before");
    std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
    return OkStatus();
  }
  Status Allocate(uint64_t) override { return NotSupported("read only"); }
  Status Sync() override { return OkStatus(); }
  Status Close() override { return OkStatus(); }
  bool direct() const override { return false; }
  const std::string& path() const override { return path_; }

 private:
  std::string_view bytes_;
  std::string path_ = "fuzz";
};

}  // namespace cairn
