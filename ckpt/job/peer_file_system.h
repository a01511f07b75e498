// A local step's directory as if it had all its files: those of other ranks are read from them.
#pragma once

#include <map>
#include <string>

#include "ckpt/io/read_only_file_system.h"
#include "ckpt/job/peer_files.h"

namespace cairn {

// Reads a part of any size of a file that `rank` offers.
Status ReadPeerFile(PeerFiles& peers, int rank, const std::string& name, uint64_t offset,
                    std::span<std::byte> bytes);

// Creates and syncs `path` as a copy of a file of `bytes` bytes that `rank` offers.
Status CopyPeerFile(PeerFiles& peers, int rank, const std::string& name, uint64_t bytes, FileSystem& fs,
                    const std::string& path);

class PeerFileSystem final : public ReadOnlyFileSystem {
 public:
  // A rank that has a file, and its size.
  struct Place {
    int rank;
    uint64_t bytes;
  };
  // `elsewhere`: by name. Files are read within a session of `peers` (PeerFiles::Session).
  PeerFileSystem(FileSystem& base, const std::string& directory, std::map<std::string, Place> elsewhere,
                 PeerFiles& peers)
      : base_(base), prefix_(directory + "/"), elsewhere_(std::move(elsewhere)), peers_(peers) {}
  const std::map<std::string, Place>& elsewhere() const { return elsewhere_; }

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override;
  Result<FileInfo> Stat(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& path) override { return base_.List(path); }

 private:
  const Place* Elsewhere(const std::string& path) const;

  FileSystem& base_;
  const std::string prefix_;
  const std::map<std::string, Place> elsewhere_;
  PeerFiles& peers_;
};

}  // namespace cairn
