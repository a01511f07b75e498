// Small reads of a file through two windows of it: a read near an earlier one costs no system call, and the
// kernel does not read further ahead. For containers whose records are found by many short reads.
#pragma once

#include <array>
#include <vector>

#include "ckpt/io/read_only_file_system.h"

namespace cairn {

// For one thread.
class WindowFile final : public ReadOnlyFile {
 public:
  // Windows end at byte `end` of the file. `file` must outlive this.
  WindowFile(File& file, uint64_t end);

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override;
  const std::string& path() const override { return file_.path(); }

 private:
  struct Window {
    uint64_t begin = 0;
    std::vector<std::byte> bytes;
  };

  File& file_;
  const uint64_t end_;
  std::array<Window, 2> windows_;  // a container's head and its end
  size_t oldest_ = 0;
};

}  // namespace cairn
