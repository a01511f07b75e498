// --save-now-file: a file that a user makes to ask for a save, and that is removed once the save is taken.
#pragma once

#include <string>

namespace cairn {

// Not thread-safe.
class SaveNowFile {
 public:
  // An empty path never asks.
  explicit SaveNowFile(std::string path) : path_(std::move(path)) {}

  // True if the file is there and was not served yet.
  bool Asks();
  // Removes the file. One that cannot be removed is reported, and asks again only after it was gone.
  void Served();

 private:
  const std::string path_;
  bool stays_ = false;  // it was served, and is still there
};

}  // namespace cairn
