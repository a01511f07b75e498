// A temporary directory, under $TMPDIR or else /tmp.
#pragma once

#include <sys/types.h>

#include <string>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

// The destructor removes the directory and its content. If a signal ends the program, even SIGKILL, a waiting
// shell removes it.
class ScratchDir {
 public:
  // Errors: IoError naming the place.
  static Result<ScratchDir> Make();
  ScratchDir(ScratchDir&& other) noexcept
      : path_(std::move(other.path_)), alive_(std::move(other.alive_)), remover_(other.remover_) {
    other.path_.clear();
  }
  ScratchDir& operator=(ScratchDir&&) = delete;
  ~ScratchDir();

  const std::string& path() const { return path_; }

 private:
  explicit ScratchDir(std::string path) : path_(std::move(path)) {}
  void StartRemover();

  std::string path_;
  UniqueFd alive_;  // the shell reads the other end, and waits until this one is closed
  pid_t remover_ = 0;
};

}  // namespace cairn
