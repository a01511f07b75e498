// One path serves steps and trees. A Feed lists the files of a member and hands over their bytes,
// MemberWriter makes tar entries of them, and StoreMember keeps the order: tar, proof, parity, sidecar. The
// sidecar is last, because its presence says that the tar was proven. Nobody locks a source. So sizes and
// times of its files are compared around each copy and around the whole tar, and its manifest or its
// listing is read again at the end; after any change nothing is stored. RebuildRecord goes the other way:
// from a tar's headers and its list of sums to a sidecar.

#include "tools/archive/store/store_member.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <thread>

#include "ckpt/base/digest.h"
#include "ckpt/base/sha256.h"
#include "ckpt/io/file_facts.h"
#include "ckpt/io/open_files.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/partial_dir.h"
#include "tools/archive/store/claims.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/removal.h"
#include "tools/archive/store/source.h"
#include "tools/archive/tar/file_packer.h"
#include "tools/archive/tar/tar_file_system.h"
#include "tools/archive/tar/tar_parity.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/archive/tar/tar_writer.h"
#include "tools/archive/tar/verified_copy.h"
#include "tools/seal/seal_check.h"

namespace cairn {
namespace {

// Removes the files of a tar that was not finished.
class PartialTar {
 public:
  PartialTar(Store store, std::string tar)
      : store_(std::move(store)),
        path_(store_.Path(tar) + std::string(kPartialSuffix)),
        tar_(std::move(tar)) {}
  ~PartialTar() {
    if (done_) return;
    for (size_t i = named_; i > 0; --i) (void)store_.fs().RemoveFile(TarPieceName(store_.Path(tar_), i));
    for (size_t i = named_ + 1; store_.fs().RemoveFile(TarPieceName(path_, i)).ok(); ++i) continue;
  }
  const std::string& path() const { return path_; }
  // As `tar`, which only its bytes may have told.
  Status Publish(const std::string& tar, size_t files) {
    tar_ = tar;
    CAIRN_RETURN_IF_ERROR(EndRemoval(store_, tar_));  // of one that was damaged since, or half removed
    while (named_ < files) {
      CAIRN_RETURN_IF_ERROR(
          store_.fs().Rename(TarPieceName(path_, named_ + 1), TarPieceName(store_.Path(tar_), named_ + 1)));
      if (++named_ == 1 || named_ == files) CAIRN_RETURN_IF_ERROR(store_.Sync());
    }
    done_ = true;
    return OkStatus();
  }

 private:
  const Store store_;
  const std::string path_;
  std::string tar_;
  size_t named_ = 0;  // files that have their final names
  bool done_ = false;
};

// Sizes and times of a step's files, to tell whether anyone touched them.
struct Seen {
  uint64_t bytes;
  int64_t modified, changed;
  bool operator==(const Seen&) const = default;
};
Result<Seen> SeenOf(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  return Seen{info.bytes, info.modified_unix_seconds, FactsOf(path).changed_unix_nanoseconds};
}

// The files of a member, and how their bytes come.
class Feed {
 public:
  virtual ~Feed() = default;
  struct Item {
    std::string name;
    uint64_t bytes = 0;
    std::vector<PackSegment> segments;     // empty: not to be packed
    std::optional<EntryFacts> facts = {};  // of a tree's
  };
  virtual std::string directory() const = 0;
  // The name and text of the file that comes first; empty name: none.
  virtual std::pair<std::string, std::string> Preface() const { return {}; }
  virtual std::vector<Item> Items(bool pack) const = 0;
  virtual Status Copy(const Item& item, const ByteSink& sink) = 0;
  // After all files were read: checks that the source did not change, and enters a tree's digest. Errors:
  // Corrupt.
  virtual Status Conclude(ArchiveRecord& record) = 0;
};

class StepFeed final : public Feed {
 public:
  StepFeed(FileSystem& fs, const StepReader& step) : fs_(fs), step_(step) {}
  std::string directory() const override { return step_.directory(); }
  std::pair<std::string, std::string> Preface() const override {
    return {std::string(kManifestName), EncodeManifest(step_.manifest())};
  }
  std::vector<Item> Items(bool pack) const override {
    std::vector<Item> items;
    for (const ManifestFile& file : step_.manifest().files) {
      items.push_back({file.name, file.bytes, {}});
      // The index is what every reader needs first, and small.
      if (pack && file.name != kIndexName) items.back().segments = SegmentsOf(step_.catalog(), file);
    }
    return items;
  }
  Status Copy(const Item& item, const ByteSink& sink) override {
    const auto& files = step_.manifest().files;
    return CopyVerified(fs_, step_, *std::ranges::find(files, item.name, &ManifestFile::name), sink);
  }
  Status Conclude(ArchiveRecord& record) override {
    return CheckManifestUnchanged(fs_, step_.directory(), record.manifest_digest);
  }

 private:
  FileSystem& fs_;
  const StepReader& step_;
};

class TreeFeed final : public Feed {
 public:
  // `sealed`: the digests of a tree that has a seal; others have none.
  TreeFeed(FileSystem& fs, std::string directory, std::vector<TreeFile> files, Links links,
           std::map<std::string, Digest> sealed)
      : fs_(fs),
        directory_(std::move(directory)),
        files_(std::move(files)),
        links_(links),
        sealed_(std::move(sealed)) {}
  std::string directory() const override { return directory_; }
  std::vector<Item> Items(bool pack) const override {
    std::vector<Item> items;
    for (const TreeFile& file : files_)
      if (file.kind == EntryKind::kFile)
        items.push_back({file.name, file.info.bytes,
                         pack ? UnknownSegments(file.info.bytes) : std::vector<PackSegment>{}, file.facts});
    return items;
  }
  Status Copy(const Item& item, const ByteSink& sink) override {
    const std::string path = JoinPath(directory_, item.name);
    const auto sealed = sealed_.find(item.name);
    if (sealed == sealed_.end()) return ReadThrough(fs_, path, item.bytes, sink);
    Hasher hasher;
    CAIRN_RETURN_IF_ERROR(ReadThrough(fs_, path, item.bytes, [&](std::span<const std::byte> bytes) {
      hasher.Update(bytes);
      return sink(bytes);
    }));
    if (hasher.Finish() == sealed->second) return OkStatus();
    return Corrupt("{}: its bytes are not those that were sealed; nothing was stored", path);
  }
  Status Conclude(ArchiveRecord& record) override {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> now, ListTree(fs_, directory_, links_));
    if (now != files_)
      return Corrupt("{}: its files changed while they were read; nothing was stored, run again", directory_);
    record.manifest_digest = record.run = TreeDigest(record);
    return OkStatus();
  }

 private:
  FileSystem& fs_;
  const std::string directory_;
  const std::vector<TreeFile> files_;
  const Links links_;
  const std::map<std::string, Digest> sealed_;
};

// The digests of a sealed tree's files; empty for any other tree. Errors: Corrupt if the tree changed since
// it was sealed, as far as sizes and times show.
Result<std::map<std::string, Digest>> SealedDigests(FileSystem& fs, const std::string& directory) {
  std::map<std::string, Digest> digests;
  if (!HasSeal(fs, directory)) return digests;
  CAIRN_ASSIGN_OR_RETURN(const Seal seal, ReadSeal(fs, directory));
  const SealReport look = CheckSeal(fs, directory, seal, SealDepth::kLook);
  if (!look.problems.empty())
    return Corrupt("{}: {}; nothing was stored. cairn seal --again seals the directory as it is now",
                   look.problems[0].file, look.problems[0].what);
  for (const SealedFile& file : seal.files) digests[file.name] = file.digest;
  return digests;
}

constexpr uint64_t kRecordRoom = 160;           // for a file's SHA-256 and places
constexpr uint64_t kMinPackedBytes = 64 << 10;  // of a file; smaller ones are left as they are

// Writes the entries of one member.
class MemberWriter {
 public:
  MemberWriter(FileSystem& fs, Feed& feed, TarWriter& tar, ArchiveRecord& record, PackPool* pool,
               const ByteProgress& progress)
      : fs_(fs),
        feed_(feed),
        siblings_(fs, feed.directory()),
        tar_(tar),
        record_(record),
        pool_(pool),
        progress_(progress) {}

  Status Write() {
    CAIRN_RETURN_IF_ERROR(WritePreface(feed_.Preface()));
    for (const Feed::Item& item : feed_.Items(pool_ != nullptr)) CAIRN_RETURN_IF_ERROR(Copy(item));
    const std::string sums = Sha256Sums(record_);
    CAIRN_RETURN_IF_ERROR(tar_.Begin(JoinPath(record_.directory, SumsName(record_)), sums.size(), newest_));
    CAIRN_RETURN_IF_ERROR(tar_.Write(std::as_bytes(std::span(sums))));
    return record_.tree ? WriteDirectoriesAndLinks(record_.tree->entries) : OkStatus();
  }

 private:
  Status WritePreface(const std::pair<std::string, std::string>& file) {
    const auto& [name, text] = file;
    if (name.empty()) return OkStatus();
    const auto bytes = std::as_bytes(std::span(text));
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(JoinPath(feed_.directory(), name)));
    newest_ = info.modified_unix_seconds;
    if (record_.saved_unix_seconds == 0) record_.saved_unix_seconds = newest_;
    CAIRN_RETURN_IF_ERROR(tar_.Begin(JoinPath(record_.directory, name), text.size(), newest_));
    const uint64_t offset = tar_.offset();
    CAIRN_RETURN_IF_ERROR(tar_.Write(bytes));
    Sha256 sha;
    sha.Update(bytes);
    record_.files.push_back({name, text.size(), sha.FinishHex(), offset, text.size(), false});
    return OkStatus();
  }

  // Directories behind all that lies in them, so that what extracts a tar, or its pieces one by one, sets
  // their times and modes last.
  Status WriteDirectoriesAndLinks(std::vector<ArchivedEntry> entries) {
    std::ranges::sort(entries, std::ranges::greater(), &ArchivedEntry::name);
    for (const ArchivedEntry& entry : entries) {
      std::string path = JoinPath(record_.directory, entry.name);
      if (entry.kind == EntryKind::kDirectory && !path.ends_with('/')) path += '/';
      CAIRN_RETURN_IF_ERROR(tar_.Begin({std::move(path), entry.kind, entry.target, entry.facts, true}, 0));
    }
    return OkStatus();
  }

  static TarWriter::Header HeaderOf(std::string entry, const Feed::Item& item, const Seen& seen) {
    TarWriter::Header header{.name = std::move(entry), .facts = {.modified_unix_seconds = seen.modified}};
    if (item.facts) header.facts = *item.facts;
    header.of_tree = item.facts.has_value();
    return header;
  }

  Status Copy(const Feed::Item& item) {
    const std::string path = JoinPath(feed_.directory(), item.name);
    CAIRN_ASSIGN_OR_RETURN(const Seen before, SeenOf(fs_, path));
    ArchivedFile file{.name = item.name, .bytes = item.bytes, .sha256 = {}};
    file.packed = !item.segments.empty() && item.bytes >= kMinPackedBytes;
    if (item.facts) file.facts = *item.facts;
    if (item.facts) newest_ = std::max(newest_, before.modified);
    TarWriter::Header header = HeaderOf(JoinPath(record_.directory, StoredName(file)), item, before);
    CAIRN_RETURN_IF_ERROR(file.packed ? tar_.BeginUpTo(std::move(header), PackedBytesAtMost(item.segments))
                                      : tar_.Begin(std::move(header), item.bytes));
    file.offset = tar_.offset();
    CAIRN_RETURN_IF_ERROR(file.packed ? CopyPacked(item, file) : CopyPlain(item, file));
    file.stored_bytes = tar_.entry_bytes();
    record_.files.push_back(std::move(file));
    CAIRN_ASSIGN_OR_RETURN(const Seen after, SeenOf(fs_, path));
    if (before != after)
      return Corrupt("{}: its files changed while they were read; nothing was stored, run again",
                     feed_.directory());
    return OkStatus();
  }

  Status CopyPlain(const Feed::Item& item, ArchivedFile& file) {
    Sha256 sha;
    CAIRN_RETURN_IF_ERROR(feed_.Copy(item, [&](std::span<const std::byte> bytes) {
      sha.Update(bytes);
      Tell(bytes.size());
      return tar_.Write(bytes);
    }));
    file.sha256 = sha.FinishHex();
    return OkStatus();
  }

  Status CopyPacked(const Feed::Item& item, ArchivedFile& file) {
    const auto weights = [this](const std::string& name, uint64_t offset,
                                std::span<std::byte> out) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const auto sibling, siblings_.Get(name, Direct::kOff));
      return sibling->ReadAt(offset, out);
    };
    FilePacker packer(*pool_, item.segments, weights,
                      [this](std::span<const std::byte> bytes) { return tar_.Write(bytes); });
    Sha256 sha;
    CAIRN_RETURN_IF_ERROR(feed_.Copy(item, [&](std::span<const std::byte> bytes) {
      sha.Update(bytes);
      Tell(bytes.size());
      return packer.Append(bytes);
    }));
    file.sha256 = sha.FinishHex();
    return packer.Finish();
  }

  void Tell(uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_);
  }

  FileSystem& fs_;
  Feed& feed_;
  OpenFiles siblings_;
  TarWriter& tar_;
  ArchiveRecord& record_;
  PackPool* const pool_;
  const ByteProgress& progress_;
  int64_t newest_ = 0;
  uint64_t done_ = 0;
};

// Sizes and times of all files at once, to tell whether anyone touched one that was read long before.
Result<std::vector<Seen>> SeenOfAll(FileSystem& fs, const Feed& feed) {
  std::vector<Seen> seen;
  std::vector<std::string> names;
  if (const auto preface = feed.Preface(); !preface.first.empty()) names.push_back(preface.first);
  for (const Feed::Item& item : feed.Items(false)) names.push_back(item.name);
  for (const std::string& name : names) {
    CAIRN_ASSIGN_OR_RETURN(const Seen one, SeenOf(fs, JoinPath(feed.directory(), name)));
    seen.push_back(one);
  }
  return seen;
}

// One a processor; each works with some 30 MB.
int PackThreads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 12); }

// Writes the tar under its final name and enters digests and size into the record.
Status WriteTar(const Store& store, Feed& feed, ArchiveRecord& record, const ByteProgress& progress,
                const StoreOptions& options) {
  FileSystem& fs = store.fs();
  CAIRN_ASSIGN_OR_RETURN(const auto before, SeenOfAll(fs, feed));
  PartialTar partial(store, TarName(record));
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial.path()));  // of a run that was killed
  WriteRing ring(fs);
  std::optional<PackPool> pool;
  if (options.pack) pool.emplace(options.threads > 0 ? options.threads : PackThreads());
  CAIRN_ASSIGN_OR_RETURN(const auto tar, TarWriter::Create(fs, ring, partial.path(), options.max_tar_bytes));
  CAIRN_RETURN_IF_ERROR(MemberWriter(fs, feed, *tar, record, pool ? &*pool : nullptr, progress).Write());
  CAIRN_ASSIGN_OR_RETURN(record.tar_bytes, tar->Finish());
  if (tar->pieces().size() > 1) record.pieces = tar->pieces();
  CAIRN_ASSIGN_OR_RETURN(const auto after, SeenOfAll(fs, feed));
  if (before != after)
    return Corrupt("{}: its files changed while they were read; nothing was stored, run again",
                   feed.directory());
  CAIRN_RETURN_IF_ERROR(feed.Conclude(record));
  InheritClaims(store, record);
  return partial.Publish(TarName(record), tar->pieces().size());
}

Status WriteRecord(const Store& store, const ArchiveRecord& record) {
  return ReplaceSmallFile(store.fs(), store.Sidecar(TarName(record)), EncodeRecord(record));
}

// Errors: NoSpace if the tar and its parity do not fit.
Status CheckRoom(const Store& store, uint64_t tar_bytes, const StoreOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t parity_bytes, ParityFileBytes(tar_bytes, options.parity));
  return CheckFreeSpace(store.fs(), store.directory(), tar_bytes + parity_bytes);
}

// Proves the tar, and only then writes its parity and its sidecar.
Result<ProvenCopy> ProveAndRecord(const Store& store, const ArchiveRecord& record,
                                  const ByteProgress& progress, double parity) {
  const auto proof = ProveMember(store, record, progress);
  if (!proof.ok())  // what the store gives back is not what it was given
    return proof.status().WithContext("the store did not keep what was written, nothing was stored");
  ArchiveRecord proven = proof->record();
  if (parity > 0) {
    CAIRN_ASSIGN_OR_RETURN(
        proven.parity, WriteTarParity(store.fs(), store.Path(TarName(proven)), parity, store.Place(proven)));
  }
  CAIRN_RETURN_IF_ERROR(WriteRecord(store, proven));
  return proof;
}

// Writes the tar, proves it, and writes the files beside it. After a failure none of them stays.
Result<ProvenCopy> StoreMember(const Store& store, Feed& feed, ArchiveRecord record, uint64_t bytes,
                               const ByteProgress& progress, const StoreOptions& options) {
  record.claims = options.claims;
  CAIRN_RETURN_IF_ERROR(WriteTar(store, feed, record, progress, options));
  const auto told = [&](uint64_t read) {
    if (progress) progress(bytes + read);
  };
  Result<ProvenCopy> copy = ProveAndRecord(store, record, told, options.parity);
  if (!copy.ok()) (void)RemoveMember(store, TarName(record));
  return copy;
}

}  // namespace

std::vector<uint64_t> TarEntries(const Manifest& manifest) {
  std::vector<uint64_t> entries{EncodeManifest(manifest).size()};
  for (const ManifestFile& file : manifest.files) entries.push_back(file.bytes);
  entries.push_back(entries.front());  // SHA256SUMS is shorter
  return entries;
}

uint64_t TarBytesAtMost(const Manifest& manifest) {
  uint64_t bytes = 1 << 20;
  for (const uint64_t entry : TarEntries(manifest)) bytes += TarEntryBytes(entry);
  return bytes;
}

Result<std::optional<ArchiveRecord>> FindStored(const Store& store, const ArchiveRecord& wanted) {
  return FindSound(
      store, [&](const ArchiveRecord& there) { return there.manifest_digest == wanted.manifest_digest; });
}

Result<ProvenCopy> StoreStep(const Store& store, const StepReader& step, const ByteProgress& progress,
                             const StoreOptions& options, std::optional<ArchiveRecord> record) {
  if (!step.manifest().shards.empty())
    return NotSupported(
        "{}: virtual, its shards are in {}; archive that step, or make this one real with cairn reshape",
        step.directory(), step.DirectoryOf(ShardName(0)));
  CAIRN_RETURN_IF_ERROR(CheckCoverage(step.catalog()).WithContext(step.directory()));
  CAIRN_RETURN_IF_ERROR(CheckRoom(store, TarBytesAtMost(step.manifest()), options));
  StepFeed feed(store.fs(), step);
  if (!record) record = DescribeSource(step);
  return StoreMember(store, feed, *std::move(record), step.manifest().bytes(), progress, options);
}

Result<ProvenCopy> StoreTree(const Store& store, const std::string& directory, const ByteProgress& progress,
                             const StoreOptions& options, Links links) {
  FileSystem& fs = store.fs();
  CAIRN_ASSIGN_OR_RETURN(std::vector<TreeFile> files, ListTree(fs, directory, links));
  CAIRN_ASSIGN_OR_RETURN(auto sealed, SealedDigests(fs, directory));
  uint64_t bytes = 0, tar_bytes = 1 << 20;
  for (const TreeFile& file : files) {
    bytes += file.info.bytes;
    tar_bytes += TarEntryBytes(file.info.bytes) + 2 * (file.name.size() + file.target.size()) + 128;
    if (file.kind == EntryKind::kFile && file.name.ends_with(kPackedSuffix))
      return NotSupported("{}: its name ends like that of a packed file; rename it first",
                          JoinPath(directory, file.name));
  }
  CAIRN_RETURN_IF_ERROR(CheckRoom(store, tar_bytes, options));
  ArchiveRecord record = DescribeTree(directory, files);
  record.tree->followed_links = links == Links::kFollow;
  if (EncodeRecord(record).size() + record.files.size() * kRecordRoom > kMaxRecordBytes)
    return NotSupported("{}: more files than the record of an archive holds; archive parts of it", directory);
  record.files.clear();  // each is entered once it is written
  TreeFeed feed(fs, directory, std::move(files), links, std::move(sealed));
  return StoreMember(store, feed, std::move(record), bytes, progress, options);
}

Result<ProvenCopy> ProveMember(const Store& store, const ArchiveRecord& record,
                               const ByteProgress& progress) {
  CAIRN_RETURN_IF_ERROR(VerifyTar(store.fs(), store.Place(record), &record, progress).status());
  ProvenCopy copy(record);
  copy.record_.verified_unix_seconds = std::time(nullptr);
  return copy;
}

namespace {

// The digest of a tree whose tar holds only its files, as programs before record version 4 wrote it.
std::string OldTreeDigest(const TarIndex& index, const ArchiveRecord& record) {
  std::string text = "cairn tree\n";
  for (size_t i = 0; i < record.files.size(); ++i)
    text += fmt::format("{}\t{}\t{}\n", record.files[i].name, record.files[i].bytes,
                        index.entries[i].facts.modified_unix_seconds);
  return ToHex(DigestOf(text));
}

// Enters what the headers say; the digests come from the list of sums.
void TakeHeaders(const TarFileSystem& view, ArchiveRecord& record) {
  const TarIndex& index = view.index();
  record.directory = index.directory;
  if (!index.others.empty()) record.tree = ArchivedTree{.entries = index.others};
  if (record.tree) std::ranges::sort(record.tree->entries, {}, &ArchivedEntry::name);
  for (size_t i = 0; i + 1 < index.entries.size(); ++i) {  // the last is the list of sums
    const TarEntry& entry = index.entries[i];
    record.files.push_back({entry.name, view.BytesOf(entry), "", entry.offset, entry.bytes, entry.packed,
                            record.tree ? entry.facts : EntryFacts{}});
  }
}

}  // namespace

Result<ProvenCopy> RebuildRecord(const MemberRef& member, const ByteProgress& progress) {
  FileSystem& fs = member.store.fs();
  const std::string path = member.path();
  const auto parts = ParseTarName(member.tar);
  if (!parts) return InvalidArgument("{}: not the name of a tar of this archive", path);
  CAIRN_ASSIGN_OR_RETURN(const TarPlace place, FindTar(fs, path));
  CAIRN_ASSIGN_OR_RETURN(const auto view, TarFileSystem::Open(fs, place, /*past_cache=*/true));
  ArchiveRecord record;
  if (parts->form != Form::kFiles) {
    CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(*view, path));
    record = RecordOf(step->manifest(), parts->run);
  }
  record.form = parts->form;
  record.name = parts->run;
  record.step = parts->step;
  TakeHeaders(*view, record);
  const std::string sums_path = JoinPath(path, view->index().entries.back().name);
  CAIRN_ASSIGN_OR_RETURN(const std::string sums, ReadSmallFile(*view, sums_path, kMaxRecordBytes));
  CAIRN_RETURN_IF_ERROR(TakeSha256Sums(sums, record).WithContext(path));
  if (record.form == Form::kFiles)
    record.manifest_digest = record.run =
        record.tree ? TreeDigest(record) : OldTreeDigest(view->index(), record);
  CAIRN_ASSIGN_OR_RETURN(record.tar_bytes, StatTar(fs, place));
  record.pieces = place.pieces;
  if (TarName(record) != member.tar)
    return Corrupt("{}: holds {}; it was renamed, or files of it are missing", path, TarName(record));
  CAIRN_ASSIGN_OR_RETURN(const ProvenCopy proof, ProveMember(member.store, record, progress));
  CAIRN_RETURN_IF_ERROR(WriteRecord(member.store, proof.record()));
  return proof;
}

}  // namespace cairn
