// --kill-switch-path: a file that ends every start of a training for as long as it is there. One that starts
// ends at once, with status 0; one that trains saves first. As BigScience's Megatron-DeepSpeed has it.
#pragma once

#include <unistd.h>

#include <string>

#include "runtime/control/console.h"

namespace cairn {

class KillSwitch {
 public:
  // An empty path is never found.
  explicit KillSwitch(std::string path) : path_(std::move(path)) {}

  // Says so the first time that the file is there.
  bool Found() {
    if (path_.empty() || ::access(path_.c_str(), F_OK) != 0) return false;
    if (!said_) Print("Detected kill switch at " + path_ + ". Exiting\n");
    said_ = true;
    return true;
  }

 private:
  const std::string path_;
  bool said_ = false;
};

}  // namespace cairn
