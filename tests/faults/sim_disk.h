// A disk in memory that records every operation, so that any moment at which a process or the power could
// have failed can be replayed.
//
// The model is exactly what POSIX guarantees:
// - bytes and size of a file are durable once a Sync() of that file has followed;
// - a directory's entries (create, mkdir, rename, exchange, unlink) are durable once a SyncDir() of it has;
// - of everything else any subset may have reached the disk, in any order: writes whole, torn at 512 B or
//   4 KiB, or not at all (the sectors then hold zeros or noise), entries lost, renames before the data they
//   name. One operation on a directory is atomic, as on every journaling file system, and happens only where
//   the file that it names exists.
// A process that dies loses none of its completed operations: the page cache stays. The current one may be
// half done.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "tests/support/serial_queue.h"

namespace cairn {

struct DiskOp {
  enum class Kind {
    kCreate,
    kMakeDir,
    kRename,
    kExchange,
    kRemove,
    kSyncDir,
    kWrite,
    kResize,
    kSync,
    kClose
  };
  Kind kind;
  int inode = 0;       // the file, or the entry's target
  int directory = 0;   // that holds `name`
  std::string name;    // of the entry
  int directory2 = 0;  // rename and exchange: where to
  std::string name2;
  int inode2 = -1;                           // exchange: the other one
  uint64_t offset = 0;                       // write; resize: the new size
  std::shared_ptr<const std::string> bytes;  // write
};
// "rename step-00000110.partial-x to step-00000110", for messages.
std::string ToString(const DiskOp& op);

class SimDisk final : public FileSystem {
 public:
  using Journal = std::vector<std::shared_ptr<const DiskOp>>;
  using Random = std::mt19937_64;

  SimDisk();

  // From now on, and on copies of this disk, Exchange() is refused, as by NFS.
  void RefuseExchange() { exchanges_ = false; }
  // A copy of the current state: all of it durable, with an empty journal.
  std::unique_ptr<SimDisk> Settled() const;
  // The process died while it did operation `at` of `journal`, which began on this disk as it was when it was
  // made or settled. What came before has happened, durable or not. `at` may be journal.size(): after the
  // last.
  std::unique_ptr<SimDisk> AfterKill(const Journal& journal, size_t at, Random& random) const;
  // The same moment, and the power failed: a disk as it may be found afterwards. All of it durable.
  // `story`, if given, gets a description of the losses.
  std::unique_ptr<SimDisk> AfterPowerLoss(const Journal& journal, size_t at, Random& random,
                                          std::string* story = nullptr) const;

  Journal journal() const;
  size_t operations() const;
  // The bytes of a file, to damage them. Null if there is none. Not for use while others use the disk.
  std::string* MutableBytes(const std::string& path);

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct = Direct::kOff) override;
  Result<std::unique_ptr<File>> Create(const std::string& path, Direct direct = Direct::kOff) override;
  Result<std::unique_ptr<File>> OpenForWrite(const std::string& path, Direct direct) override {
    return OpenForRead(path, direct);
  }
  Result<FileInfo> Stat(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Status MakeDir(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Exchange(const std::string& a, const std::string& b) override;
  Status RemoveFile(const std::string& path) override;
  Status RemoveDir(const std::string& path) override;
  Status SyncDir(const std::string& path) override;
  Result<uint64_t> FreeBytes(const std::string& path) override;
  // The same work gives the same journal.
  std::unique_ptr<IoQueue> NewQueue(const IoQueueOptions&) override {
    return std::make_unique<SerialQueue>();
  }

 private:
  friend class SimFile;

  struct Node {
    bool directory = false;
    std::map<std::string, int, std::less<>> entries;
    std::shared_ptr<std::string> bytes = nullptr;  // shared between images until one of them writes
  };
  using Tree = std::vector<Node>;  // by inode; 0 is the root

  struct Place {  // of a path
    int directory;
    std::string name;
    int inode;  // -1: there is none
  };

  SimDisk(Tree tree, bool exchanges) : base_(tree), tree_(std::move(tree)), exchanges_(exchanges) {}
  static std::string& Own(Node& node);
  static void MakeNode(Tree& tree, const DiskOp& op);
  static bool Apply(Tree& tree, const DiskOp& op);
  static void ApplyTorn(Tree& tree, const DiskOp& op, Random& random);
  Result<Place> Find(const std::string& path) const;
  Status Do(DiskOp op);        // takes the lock
  Status DoLocked(DiskOp op);  // the caller holds it
  Status Remove(const std::string& path, bool directory);

  mutable std::mutex mutex_;
  const Tree base_;  // durable before the journal begins
  Tree tree_;
  Journal journal_;
  bool exchanges_;
};

}  // namespace cairn
