#include "ckpt/job/peer_file_system.h"

#include <algorithm>

#include "ckpt/io/write_ring.h"

namespace cairn {
namespace {

constexpr uint64_t kCopyBytes = 1 << 20;

class PeerFile final : public ReadOnlyFile {
 public:
  PeerFile(PeerFiles& peers, int rank, std::string name)
      : peers_(peers), rank_(rank), name_(std::move(name)) {}
  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    return ReadPeerFile(peers_, rank_, name_, offset, bytes);
  }
  const std::string& path() const override { return name_; }

 private:
  PeerFiles& peers_;
  const int rank_;
  const std::string name_;
};

}  // namespace

Status ReadPeerFile(PeerFiles& peers, int rank, const std::string& name, uint64_t offset,
                    std::span<std::byte> bytes) {
  const PeerFiles::Read read{rank, name, offset, bytes};
  return peers.ReadAll({&read, 1});
}

Status CopyPeerFile(PeerFiles& peers, int rank, const std::string& name, uint64_t bytes, FileSystem& fs,
                    const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<File> copy, fs.Create(path));
  WriteRing ring(fs);
  SequentialWriter out(ring, copy.get(), 0);
  std::vector<std::byte> part(kCopyBytes);
  for (uint64_t done = 0; done < bytes; done += part.size()) {
    part.resize(std::min(kCopyBytes, bytes - done));
    CAIRN_RETURN_IF_ERROR(ReadPeerFile(peers, rank, name, done, part));
    out.Append(part);
  }
  out.Flush();
  CAIRN_RETURN_IF_ERROR(ring.Drain());
  CAIRN_RETURN_IF_ERROR(copy->Sync());
  return copy->Close();
}

Result<std::unique_ptr<File>> PeerFileSystem::OpenForRead(const std::string& path, Direct direct) {
  const Place* place = Elsewhere(path);
  if (place == nullptr) return base_.OpenForRead(path, direct);
  return std::unique_ptr<File>(std::make_unique<PeerFile>(peers_, place->rank, path.substr(prefix_.size())));
}

Result<FileInfo> PeerFileSystem::Stat(const std::string& path) {
  const Place* place = Elsewhere(path);
  return place == nullptr ? base_.Stat(path) : FileInfo{.bytes = place->bytes};
}

const PeerFileSystem::Place* PeerFileSystem::Elsewhere(const std::string& path) const {
  if (!path.starts_with(prefix_)) return nullptr;
  const auto found = elsewhere_.find(path.substr(prefix_.size()));
  return found == elsewhere_.end() ? nullptr : &found->second;
}

}  // namespace cairn
