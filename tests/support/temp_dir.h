// A directory of a test, removed with its contents.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace cairn {

class TempDir {
 public:
  // In memory if available: for tests that sync often, and are not about the disk.
  enum class Place { kDisk, kMemory };
  explicit TempDir(Place place = Place::kDisk) {
    const bool memory = place == Place::kMemory && std::filesystem::is_directory("/dev/shm");
    std::string name = (memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) /
                       "cairn-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace cairn
