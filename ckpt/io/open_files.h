// A step's shards, opened when first needed and closed again when many are: a step may have more of them than
// a process may have descriptors. Safe from several threads.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ckpt/io/file_system.h"

namespace cairn {

class OpenFiles {
 public:
  // At most `limit` files stay open without a user.
  OpenFiles(FileSystem& fs, std::string directory, size_t limit = 64)
      : fs_(fs), directory_(std::move(directory)), limit_(limit) {}

  // `directory`/`name`, for as long as the caller holds it. Errors: those of FileSystem::OpenForRead.
  Result<std::shared_ptr<File>> Get(const std::string& name, Direct direct);

  FileSystem& file_system() const { return fs_; }
  const std::string& directory() const { return directory_; }

 private:
  using Key = std::pair<std::string, Direct>;
  struct Entry {
    Key key;
    std::shared_ptr<File> file;
  };

  FileSystem& fs_;
  const std::string directory_;
  const size_t limit_;
  std::mutex mutex_;
  std::list<Entry> recent_;  // most recently used first
  std::map<Key, std::list<Entry>::iterator> index_;
};

}  // namespace cairn
