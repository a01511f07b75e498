#include "tests/faults/sim_disk.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/enum_names.h"

namespace cairn {

using Kind = DiskOp::Kind;

namespace {

bool IsData(Kind kind) { return kind == Kind::kWrite || kind == Kind::kResize; }
bool IsEntry(Kind kind) {
  return kind == Kind::kCreate || kind == Kind::kMakeDir || kind == Kind::kRename ||
         kind == Kind::kExchange || kind == Kind::kRemove;
}

// Which pending operations reached the disk. Uniform draws rarely hit the corner cases, so those are drawn
// too.
class Luck {
 public:
  explicit Luck(SimDisk::Random& random) : random_(random) {
    constexpr int kParts[] = {0, 0, 10, 50, 50, 90, 100, 100};  // percent
    data_ = kParts[random() % 8];
    entries_ = kParts[random() % 8];
    torn_ = random() % 2 == 0 ? 30 : 0;
    in_order_ = random() % 3 == 0;
  }
  bool Keeps(const DiskOp& op) {
    if (!IsEntry(op.kind)) return Percent(data_);
    if (in_order_ && lost_) return false;  // a journal loses its end
    lost_ = !Percent(entries_);
    return !lost_;
  }
  bool Tears() { return Percent(torn_); }

 private:
  bool Percent(int part) { return static_cast<int>(random_() % 100) < part; }

  SimDisk::Random& random_;
  int data_, entries_, torn_;
  bool in_order_;
  bool lost_ = false;
};

Status NoFile(const std::string& path) { return NotFound("{}: No such file or directory", path); }

}  // namespace

std::string ToString(const DiskOp& op) {
  static constexpr std::string_view kNames[] = {"create",  "mkdir", "rename", "exchange", "remove",
                                                "syncdir", "write", "resize", "fsync",    "close"};
  std::string text = fmt::format("{} #{}", NameIn<Kind::kClose>(kNames, op.kind), op.inode);
  if (!op.name.empty()) text += " " + op.name;
  if (!op.name2.empty()) text += " to " + op.name2;
  if (op.bytes) text += fmt::format(" [{}, {})", op.offset, op.offset + op.bytes->size());
  if (op.kind == Kind::kResize) text += fmt::format(" to {}", op.offset);
  return text;
}

class SimFile final : public File {
 public:
  SimFile(SimDisk& disk, int inode, std::string path, bool direct)
      : disk_(disk), inode_(inode), path_(std::move(path)), direct_(direct) {}

  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
    CAIRN_RETURN_IF_ERROR(CheckAligned(offset, bytes.data(), bytes.size()));
    auto copy =
        std::make_shared<const std::string>(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Do({.kind = Kind::kWrite, .inode = inode_, .offset = offset, .bytes = std::move(copy)});
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    CAIRN_RETURN_IF_ERROR(CheckAligned(offset, bytes.data(), bytes.size()));
    const std::lock_guard lock(disk_.mutex_);
    const std::string& content = *disk_.tree_[inode_].bytes;
    if (offset > content.size() || bytes.size() > content.size() - offset)
      return Corrupt("{} ends at byte {}; the file was truncated", path_, content.size());
    std::memcpy(bytes.data(), content.data() + offset, bytes.size());
    return OkStatus();
  }

  Status Allocate(uint64_t bytes) override {
    return Do({.kind = Kind::kResize, .inode = inode_, .offset = bytes});
  }
  Status Sync() override { return Do({.kind = Kind::kSync, .inode = inode_}); }
  Status Close() override {
    if (closed_) return OkStatus();
    const Status status = Do({.kind = Kind::kClose, .inode = inode_});
    closed_ = true;
    return status;
  }
  bool direct() const override { return direct_; }
  const std::string& path() const override { return path_; }

 private:
  Status Do(DiskOp op) {
    if (closed_) return IoError("{}: Bad file descriptor", path_);
    return disk_.Do(std::move(op));
  }
  Status CheckAligned(uint64_t offset, const void* address, uint64_t size) const {
    if (!direct_ || (offset | size | reinterpret_cast<uintptr_t>(address)) % kPageBytes == 0)
      return OkStatus();
    return IoError("{} at byte {}: Invalid argument (not aligned)", path_, offset);
  }

  SimDisk& disk_;
  const int inode_;
  const std::string path_;
  const bool direct_;
  std::atomic<bool> closed_ = false;
};

SimDisk::SimDisk() : SimDisk(Tree{{.directory = true, .entries = {}}}, true) {}

// ---- Operations on a tree ----

std::string& SimDisk::Own(Node& node) {
  if (node.bytes.use_count() > 1) node.bytes = std::make_shared<std::string>(*node.bytes);
  return *node.bytes;
}

// The result of a create or mkdir, still without a name.
void SimDisk::MakeNode(Tree& tree, const DiskOp& op) {
  if (op.inode >= static_cast<int>(tree.size())) tree.resize(op.inode + 1);
  tree[op.inode].directory = op.kind == Kind::kMakeDir;
  if (op.kind == Kind::kCreate) tree[op.inode].bytes = std::make_shared<std::string>();
}

// False if the file that the operation names does not exist; nothing is done then.
bool SimDisk::Apply(Tree& tree, const DiskOp& op) {
  if (op.kind == Kind::kCreate || op.kind == Kind::kMakeDir) MakeNode(tree, op);
  auto& entries = tree[op.directory].entries;
  const auto holds = [&](int directory, const std::string& name, int inode) {
    const auto found = tree[directory].entries.find(name);
    return found != tree[directory].entries.end() && found->second == inode;
  };
  switch (op.kind) {
    case Kind::kCreate:
    case Kind::kMakeDir:
      tree[op.directory].entries[op.name] = op.inode;
      break;
    case Kind::kRename:
      if (!holds(op.directory, op.name, op.inode)) return false;
      entries.erase(op.name);
      tree[op.directory2].entries[op.name2] = op.inode;
      break;
    case Kind::kExchange:
      if (!holds(op.directory, op.name, op.inode) || !holds(op.directory2, op.name2, op.inode2)) return false;
      entries[op.name] = op.inode2;
      tree[op.directory2].entries[op.name2] = op.inode;
      break;
    case Kind::kRemove:
      if (!holds(op.directory, op.name, op.inode)) return false;
      entries.erase(op.name);
      break;
    case Kind::kWrite: {
      std::string& bytes = Own(tree[op.inode]);
      const uint64_t end = op.offset + op.bytes->size();
      if (bytes.size() < end) bytes.resize(end, '\0');
      bytes.replace(op.offset, op.bytes->size(), *op.bytes);
      break;
    }
    case Kind::kResize:
      Own(tree[op.inode]).resize(op.offset, '\0');
      break;
    case Kind::kSyncDir:
    case Kind::kSync:
    case Kind::kClose:
      break;
  }
  return true;
}

// A write of which only some sectors arrived; the others keep their old bytes, or hold noise if there were
// none.
void SimDisk::ApplyTorn(Tree& tree, const DiskOp& op, Random& random) {
  std::string& bytes = Own(tree[op.inode]);
  const uint64_t sector = random() % 2 == 0 ? 512 : kPageBytes;
  const uint64_t end = op.offset + op.bytes->size();
  const bool noise = random() % 2 == 0;
  if (random() % 4 != 0 && bytes.size() < end) bytes.resize(end, '\0');
  for (uint64_t at = op.offset; at < end;) {
    const uint64_t next = std::min(end, at / sector * sector + sector);
    const bool arrived = random() % 2 == 0;
    if (arrived && bytes.size() < next) bytes.resize(next, '\0');
    if (next <= bytes.size())
      for (uint64_t i = at; i < next && (arrived || noise); ++i)
        bytes[i] = arrived ? (*op.bytes)[i - op.offset] : static_cast<char>(i * 131 >> 3);
    at = next;
  }
}

// ---- States that may be found afterwards ----

std::unique_ptr<SimDisk> SimDisk::Settled() const {
  const std::lock_guard lock(mutex_);
  return std::unique_ptr<SimDisk>(new SimDisk(tree_, exchanges_));
}

std::unique_ptr<SimDisk> SimDisk::AfterKill(const Journal& journal, size_t at, Random& random) const {
  std::unique_ptr<SimDisk> disk(new SimDisk(base_, exchanges_));
  disk->journal_.reserve(at + 64);
  for (size_t i = 0; i < at; ++i) {
    Apply(disk->tree_, *journal[i]);
    disk->journal_.push_back(journal[i]);
  }
  if (at == journal.size() || journal[at]->kind != Kind::kWrite || random() % 2 == 0) return disk;
  DiskOp half = *journal[at];
  if (half.bytes->empty()) return disk;
  half.bytes = std::make_shared<const std::string>(half.bytes->substr(0, random() % half.bytes->size()));
  (void)disk->Do(std::move(half));
  return disk;
}

std::unique_ptr<SimDisk> SimDisk::AfterPowerLoss(const Journal& journal, size_t at, Random& random,
                                                 std::string* story) const {
  const size_t end = std::min(at + 1, journal.size());  // the operation under way may have arrived too
  std::vector<size_t> synced;                           // by inode: number of operations before the last sync
  for (size_t i = 0; i < at; ++i) {
    const DiskOp& op = *journal[i];
    if (op.kind != Kind::kSync && op.kind != Kind::kSyncDir) continue;
    if (synced.size() <= static_cast<size_t>(op.inode)) synced.resize(op.inode + 1);
    synced[op.inode] = i;
  }
  const auto before_sync = [&](size_t i, int inode) {
    return static_cast<size_t>(inode) < synced.size() && i < synced[inode];
  };

  Tree tree = base_;
  Luck luck(random);
  for (size_t i = 0; i < end; ++i) {
    const DiskOp& op = *journal[i];
    const bool data = IsData(op.kind), entry = IsEntry(op.kind);
    if (!data && !entry) continue;
    bool durable = data ? before_sync(i, op.inode) : before_sync(i, op.directory);
    if (op.kind == Kind::kRename || op.kind == Kind::kExchange) durable &= before_sync(i, op.directory2);
    if (durable) {
      Apply(tree, op);
      continue;
    }
    const bool kept = luck.Keeps(op);
    const bool torn = kept && op.kind == Kind::kWrite && luck.Tears();
    if (torn)
      ApplyTorn(tree, op, random);
    else if (kept)
      Apply(tree, op);
    else if (op.kind == Kind::kCreate || op.kind == Kind::kMakeDir)
      MakeNode(tree, op);
    if (story && (torn || !kept))
      *story += fmt::format("{} {}: {}\n", torn ? "torn" : "lost", i, ToString(op));
  }
  return std::unique_ptr<SimDisk>(new SimDisk(std::move(tree), exchanges_));
}

SimDisk::Journal SimDisk::journal() const {
  const std::lock_guard lock(mutex_);
  return journal_;
}

size_t SimDisk::operations() const {
  const std::lock_guard lock(mutex_);
  return journal_.size();
}

std::string* SimDisk::MutableBytes(const std::string& path) {
  const Result<Place> place = Find(path);
  if (!place.ok() || place->inode < 0 || tree_[place->inode].directory) return nullptr;
  return &Own(tree_[place->inode]);
}

// ---- FileSystem ----

Result<SimDisk::Place> SimDisk::Find(const std::string& path) const {
  Place place{0, "", 0};
  size_t at = 0;
  while (at < path.size()) {
    const size_t slash = std::min(path.find('/', at), path.size());
    const std::string_view name(path.data() + at, slash - at);
    at = slash + 1;
    if (name.empty()) continue;
    if (place.inode < 0 || !tree_[place.inode].directory) return NoFile(path);
    const auto& entries = tree_[place.inode].entries;
    const auto found = entries.find(name);
    place = {place.inode, std::string(name), found == entries.end() ? -1 : found->second};
  }
  return place;
}

Status SimDisk::Do(DiskOp op) {
  const std::lock_guard lock(mutex_);
  return DoLocked(std::move(op));
}

Status SimDisk::DoLocked(DiskOp op) {
  Apply(tree_, op);
  journal_.push_back(std::make_shared<const DiskOp>(std::move(op)));
  return OkStatus();
}

Result<std::unique_ptr<File>> SimDisk::OpenForRead(const std::string& path, Direct direct) {
  const std::lock_guard lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.inode < 0) return NoFile(path);
  if (tree_[place.inode].directory) return IoError("open {}: Is a directory", path);
  return std::unique_ptr<File>(std::make_unique<SimFile>(*this, place.inode, path, direct != Direct::kOff));
}

Result<std::unique_ptr<File>> SimDisk::Create(const std::string& path, Direct direct) {
  const std::lock_guard lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.inode >= 0) return AlreadyExists("create {}: File exists", path);
  const int inode = static_cast<int>(tree_.size());
  (void)DoLocked(
      {.kind = Kind::kCreate, .inode = inode, .directory = place.directory, .name = place.name, .name2 = {}});
  return std::unique_ptr<File>(std::make_unique<SimFile>(*this, inode, path, direct != Direct::kOff));
}

Result<FileInfo> SimDisk::Stat(const std::string& path) {
  const std::lock_guard lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.inode < 0) return NoFile(path);
  const Node& node = tree_[place.inode];
  return FileInfo{.kind = node.directory ? FileKind::kDirectory : FileKind::kFile,
                  .bytes = node.directory ? 0 : node.bytes->size(),
                  .inode = static_cast<uint64_t>(place.inode) + 1};
}

Result<std::vector<std::string>> SimDisk::List(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(const Place place, Find(directory));
  if (place.inode < 0 || !tree_[place.inode].directory) return NoFile(directory);
  std::vector<std::string> names;
  for (const auto& [name, inode] : tree_[place.inode].entries) names.push_back(name);
  return names;
}

Status SimDisk::MakeDir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.inode >= 0)
    return tree_[place.inode].directory ? OkStatus() : AlreadyExists("mkdir {}: File exists", path);
  return DoLocked({.kind = Kind::kMakeDir,
                   .inode = static_cast<int>(tree_.size()),
                   .directory = place.directory,
                   .name = place.name,
                   .name2 = {}});
}

Status SimDisk::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(const Place a, Find(from));
  CAIRN_ASSIGN_OR_RETURN(const Place b, Find(to));
  if (a.inode < 0) return NoFile(from);
  if (b.inode >= 0 && (tree_[b.inode].directory || tree_[a.inode].directory))
    return AlreadyExists("rename {} to {}: File exists", from, to);
  return DoLocked({.kind = Kind::kRename,
                   .inode = a.inode,
                   .directory = a.directory,
                   .name = a.name,
                   .directory2 = b.directory,
                   .name2 = b.name});
}

Status SimDisk::Exchange(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  if (!exchanges_) return NotSupported("{}: no exchange", to);
  CAIRN_ASSIGN_OR_RETURN(const Place a, Find(from));
  CAIRN_ASSIGN_OR_RETURN(const Place b, Find(to));
  if (a.inode < 0 || b.inode < 0) return NoFile(a.inode < 0 ? from : to);
  return DoLocked({.kind = Kind::kExchange,
                   .inode = a.inode,
                   .directory = a.directory,
                   .name = a.name,
                   .directory2 = b.directory,
                   .name2 = b.name,
                   .inode2 = b.inode});
}

Status SimDisk::Remove(const std::string& path, bool directory) {
  const std::lock_guard lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.inode < 0) return NoFile(path);
  if (tree_[place.inode].directory != directory) return IoError("remove {}: wrong kind of file", path);
  if (!tree_[place.inode].entries.empty()) return AlreadyExists("remove {}: Directory not empty", path);
  return DoLocked({.kind = Kind::kRemove,
                   .inode = place.inode,
                   .directory = place.directory,
                   .name = place.name,
                   .name2 = {}});
}

Status SimDisk::RemoveFile(const std::string& path) { return Remove(path, false); }
Status SimDisk::RemoveDir(const std::string& path) { return Remove(path, true); }

Status SimDisk::SyncDir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.inode < 0 || !tree_[place.inode].directory) return NoFile(path);
  return DoLocked({.kind = Kind::kSyncDir, .inode = place.inode, .name = place.name, .name2 = {}});
}

Result<uint64_t> SimDisk::FreeBytes(const std::string&) { return uint64_t{1} << 40; }

}  // namespace cairn
