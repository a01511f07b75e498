// A file system that notes which files are opened, so that the rest of a checkpoint can be listed.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "ckpt/io/read_only_file_system.h"

namespace cairn {

class ReadLog final : public ReadOnlyFileSystem {
 public:
  explicit ReadLog(FileSystem& base) : base_(base) {}  // which outlives it

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override;
  Result<FileInfo> Stat(const std::string& path) override { return base_.Stat(path); }
  Result<FileInfo> LinkStat(const std::string& path) override { return base_.LinkStat(path); }
  Result<std::vector<std::string>> List(const std::string& path) override { return base_.List(path); }
  std::unique_ptr<IoQueue> NewQueue(const IoQueueOptions& options) override {
    return base_.NewQueue(options);
  }

  // Counts as read.
  void Add(const std::string& path);
  // The entries of `directory` that were not read, relative to it: files, and directories ("original/") of
  // which no file was read. Other steps of the same run, whose names differ only in digits, are left out.
  std::vector<std::string> Unread(const std::string& directory) const;

 private:
  void AddUnread(const std::string& directory, const std::string& below,
                 std::vector<std::string>& unread) const;
  bool HasReadBelow(const std::string& directory) const;

  FileSystem& base_;
  mutable std::mutex mutex_;
  std::set<std::string> read_;  // normal paths
};

}  // namespace cairn
