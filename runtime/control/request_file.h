// Files that a user makes to ask a running training for something.
#pragma once

#include <string>

namespace cairn {

// --save-now-file: asks for a save, and is removed once the save is taken. Not thread-safe.
class SaveNowFile {
 public:
  // An empty path never asks.
  explicit SaveNowFile(std::string path) : path_(std::move(path)) {}

  // True if the file exists and was not served yet.
  bool Asks();
  // Removes the file. One that cannot be removed is reported, and asks again only after it was gone.
  void Served();

 private:
  const std::string path_;
  bool stays_ = false;  // it was served, but still exists
};

// --kill-switch-path: ends every start of a training as long as the file exists, as in BigScience's
// Megatron-DeepSpeed. One that starts ends at once, with status 0; one that trains saves first. Prints a line
// if the file exists; an empty path never does.
bool FindKillSwitch(const std::string& path);

}  // namespace cairn
