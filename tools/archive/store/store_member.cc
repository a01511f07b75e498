// Steps and trees are stored the same way. MemberFiles lists the files of a member and reads them,
// MemberWriter writes them as tar entries, and StoreMember keeps the order: tar, proof, parity, sidecar. The
// sidecar comes last, because its presence says that the tar was proven. Nobody locks a source. Sizes and
// times of its files are therefore compared after each copy and again at the end, where its manifest or its
// listing is read again, too; after any change nothing is stored.

#include "tools/archive/store/store_member.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <thread>

#include "ckpt/base/digest.h"
#include "ckpt/base/sha256.h"
#include "ckpt/io/open_files.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/partial_dir.h"
#include "tools/archive/store/claims.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/store/source.h"
#include "tools/archive/tar/file_packer.h"
#include "tools/archive/tar/record_sums.h"
#include "tools/archive/tar/tar_parity.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/archive/tar/tar_writer.h"
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
  // As `tar`, a name that may depend on the bytes.
  Status Publish(const std::string& tar, size_t files) {
    tar_ = tar;
    CAIRN_RETURN_IF_ERROR(EndRemoval(store_, tar_));  // of a member that was damaged since, or half removed
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

Status ChangedMeanwhile(const std::string& directory) {
  return Corrupt("{}: its files changed while they were read; nothing was stored, run this again", directory);
}

// Size and times of a file, to detect changes.
struct Seen {
  uint64_t bytes;
  int64_t modified, changed;
  bool operator==(const Seen&) const = default;
};

struct SourceFile {
  std::string name;
  uint64_t bytes = 0;
  std::vector<PackSegment> segments = {};  // empty: not to be packed
  std::optional<EntryFacts> facts = {};    // in a tree
};

// The files of a member, and how to read them.
struct MemberFiles {
  std::string directory;
  std::optional<std::string> manifest = {};  // of a step; it comes first
  std::vector<SourceFile> files = {};
  // Hands the bytes of a file to the sink. Returns their SHA-256 in hexadecimal.
  std::function<Result<std::string>(const SourceFile&, const ByteSink&)> copy = {};
  // After all files were read: checks that the source did not change, and enters a tree's digest. Errors:
  // Corrupt.
  std::function<Status(ArchiveRecord&)> conclude = {};
};

MemberFiles FilesOfStep(FileSystem& fs, const StepReader& step, bool pack) {
  MemberFiles source{.directory = step.directory(), .manifest = EncodeManifest(step.manifest())};
  for (const ManifestFile& file : step.manifest().files) {
    source.files.push_back({.name = file.name, .bytes = file.bytes});
    // The index is small, and every reader needs it first.
    if (pack && file.name != kIndexName) source.files.back().segments = SegmentsOf(step.catalog(), file);
  }
  source.copy = [&](const SourceFile& file, const ByteSink& sink) -> Result<std::string> {
    const auto& files = step.manifest().files;
    Sha256 sha;
    CAIRN_RETURN_IF_ERROR(CopyVerified(fs, step, *std::ranges::find(files, file.name, &ManifestFile::name),
                                       [&](std::span<const std::byte> bytes) {
                                         sha.Update(bytes);
                                         return sink(bytes);
                                       }));
    return sha.FinishHex();
  };
  source.conclude = [&](const ArchiveRecord& record) {
    return CheckManifestUnchanged(fs, step.directory(), record.manifest_digest);
  };
  return source;
}

// `sealed`: the digests of a tree that has a seal; others have none.
MemberFiles FilesOfTree(FileSystem& fs, const std::string& directory, std::vector<TreeFile> files,
                        Links links, std::map<std::string, Digest> sealed, bool pack) {
  MemberFiles source{.directory = directory};
  for (const TreeFile& file : files)
    if (file.kind == EntryKind::kFile)
      source.files.push_back({file.name, file.info.bytes,
                              pack ? UnknownSegments(file.info.bytes) : std::vector<PackSegment>{},
                              file.facts});
  source.copy = [&fs, directory, sealed = std::move(sealed)](const SourceFile& file,
                                                             const ByteSink& sink) -> Result<std::string> {
    const std::string path = JoinPath(directory, file.name);
    const auto seal = sealed.find(file.name);
    if (seal == sealed.end()) return HashThrough(fs, path, file.bytes, sink);
    Hasher hasher;
    CAIRN_ASSIGN_OR_RETURN(std::string sha256,
                           HashThrough(fs, path, file.bytes, [&](std::span<const std::byte> bytes) {
                             hasher.Update(bytes);
                             return sink(bytes);
                           }));
    if (hasher.Finish() == seal->second) return sha256;
    return Corrupt("{}: its bytes are not those that were sealed; nothing was stored", path);
  };
  source.conclude = [&fs, directory, links, files = std::move(files)](ArchiveRecord& record) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> now, ListTree(fs, directory, links));
    if (now != files) return ChangedMeanwhile(directory);
    record.manifest_digest = record.run = TreeDigest(record);
    return OkStatus();
  };
  return source;
}

// The digests of a sealed tree's files; empty for any other tree. Errors: Corrupt if the tree changed since
// it was sealed, as far as sizes and times show.
Result<std::map<std::string, Digest>> SealedDigests(FileSystem& fs, const std::string& directory) {
  std::map<std::string, Digest> digests;
  const Result<Seal> seal = ReadSeal(fs, directory);
  if (seal.status().kind() == StatusKind::kNotFound) return digests;
  CAIRN_RETURN_IF_ERROR(seal.status());
  const SealReport look = CheckSeal(fs, directory, *seal, SealDepth::kLook);
  if (!look.problems.empty())
    return Corrupt("{}: {}; nothing was stored. cairn seal --again seals the directory as it is now",
                   look.problems[0].file, look.problems[0].what);
  for (const SealedFile& file : seal->files) digests[file.name] = file.digest;
  return digests;
}

constexpr uint64_t kRecordRoom = 160;           // for a file's SHA-256 and places
constexpr uint64_t kMinPackedBytes = 64 << 10;  // of a file; smaller ones are not packed

// Writes the entries of one member.
class MemberWriter {
 public:
  MemberWriter(FileSystem& fs, const MemberFiles& source, TarWriter& tar, ArchiveRecord& record,
               PackPool* pool, const ByteProgress& progress)
      : fs_(fs),
        source_(source),
        siblings_(fs, source.directory),
        tar_(tar),
        record_(record),
        pool_(pool),
        progress_(progress) {}

  Status Write() {
    for (const SourceFile& file : source_.files) {
      CAIRN_ASSIGN_OR_RETURN(const Seen seen, Look(file.name));
      seen_.push_back(seen);
      if (file.facts) newest_ = std::max(newest_, seen.modified);
    }
    if (source_.manifest) CAIRN_RETURN_IF_ERROR(WriteManifest(*source_.manifest));
    for (size_t i = 0; i < source_.files.size(); ++i) {
      CAIRN_RETURN_IF_ERROR(WriteFile(source_.files[i], seen_[i]));
      CAIRN_RETURN_IF_ERROR(CheckUntouched(i));
    }
    const std::string sums = Sha256Sums(record_);
    CAIRN_RETURN_IF_ERROR(tar_.Begin(JoinPath(record_.directory, SumsName(record_)), sums.size(), newest_));
    CAIRN_RETURN_IF_ERROR(tar_.Write(std::as_bytes(std::span(sums))));
    if (record_.tree) CAIRN_RETURN_IF_ERROR(WriteDirectoriesAndLinks(record_.tree->entries));
    CAIRN_ASSIGN_OR_RETURN(record_.tar_bytes, tar_.Finish());
    // Again: a file may have changed long after it was copied.
    for (size_t i = 0; i < source_.files.size(); ++i) CAIRN_RETURN_IF_ERROR(CheckUntouched(i));
    return OkStatus();
  }

 private:
  Result<Seen> Look(const std::string& name) const {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(JoinPath(source_.directory, name)));
    return Seen{info.bytes, info.modified_unix_seconds, info.changed_unix_nanoseconds};
  }

  Status CheckUntouched(size_t i) const {
    CAIRN_ASSIGN_OR_RETURN(const Seen now, Look(source_.files[i].name));
    return now == seen_[i] ? OkStatus() : ChangedMeanwhile(source_.directory);
  }

  Status WriteManifest(const std::string& text) {
    const std::string name(kManifestName);
    const auto bytes = std::as_bytes(std::span(text));
    CAIRN_ASSIGN_OR_RETURN(const Seen seen, Look(name));
    newest_ = seen.modified;
    if (record_.saved_unix_seconds == 0) record_.saved_unix_seconds = newest_;
    CAIRN_RETURN_IF_ERROR(tar_.Begin(JoinPath(record_.directory, name), text.size(), newest_));
    const uint64_t offset = tar_.offset();
    CAIRN_RETURN_IF_ERROR(tar_.Write(bytes));
    Sha256 sha;
    sha.Update(bytes);
    record_.files.push_back({name, text.size(), sha.FinishHex(), offset, text.size(), false});
    return OkStatus();
  }

  // Directories come after everything in them, so that a program that extracts the tar, or its pieces one by
  // one, sets their times and modes last.
  Status WriteDirectoriesAndLinks(std::vector<ArchivedEntry> entries) {
    std::ranges::sort(entries, std::ranges::greater(), &ArchivedEntry::name);
    for (const ArchivedEntry& entry : entries) {
      std::string path = JoinPath(record_.directory, entry.name);
      if (entry.kind == EntryKind::kDirectory && !path.ends_with('/')) path += '/';
      CAIRN_RETURN_IF_ERROR(tar_.Begin({std::move(path), entry.kind, entry.target, entry.facts, true}, 0));
    }
    return OkStatus();
  }

  Status WriteFile(const SourceFile& source, const Seen& seen) {
    ArchivedFile file{.name = source.name, .bytes = source.bytes};
    file.packed = !source.segments.empty() && source.bytes >= kMinPackedBytes;
    if (source.facts) file.facts = *source.facts;
    TarWriter::Header header{
        .name = JoinPath(record_.directory, StoredName(file)),
        .facts = source.facts.value_or(EntryFacts{.modified_unix_seconds = seen.modified}),
        .of_tree = source.facts.has_value()};
    CAIRN_RETURN_IF_ERROR(file.packed ? tar_.BeginUpTo(std::move(header), PackedBytesAtMost(source.segments))
                                      : tar_.Begin(std::move(header), source.bytes));
    file.offset = tar_.offset();
    std::optional<FilePacker> packer;
    if (file.packed) packer.emplace(*pool_, source.segments, ReadWeights(), WriteToTar());
    CAIRN_ASSIGN_OR_RETURN(file.sha256, source_.copy(source, [&](std::span<const std::byte> bytes) {
      progress_.Add(bytes.size());
      return packer ? packer->Append(bytes) : tar_.Write(bytes);
    }));
    if (packer) CAIRN_RETURN_IF_ERROR(packer->Finish());
    file.stored_bytes = tar_.entry_bytes();
    record_.files.push_back(std::move(file));
    return OkStatus();
  }

  FilePacker::Emit WriteToTar() {
    return [this](std::span<const std::byte> bytes) { return tar_.Write(bytes); };
  }
  FilePacker::WeightReader ReadWeights() {
    return [this](const std::string& name, uint64_t offset, std::span<std::byte> out) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const auto sibling, siblings_.Get(name, Direct::kOff));
      return sibling->ReadAt(offset, out);
    };
  }

  FileSystem& fs_;
  const MemberFiles& source_;
  OpenFiles siblings_;
  TarWriter& tar_;
  ArchiveRecord& record_;
  PackPool* const pool_;
  ProgressSum progress_;
  std::vector<Seen> seen_;  // of each file, before the first is read
  int64_t newest_ = 0;
};

// One for each processor; each takes some 30 MB.
int PackThreads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 12); }

// Writes the tar under its final name and enters digests and size into the record.
Status WriteTar(const Store& store, const MemberFiles& source, ArchiveRecord& record,
                const ByteProgress& progress, const StoreOptions& options) {
  FileSystem& fs = store.fs();
  PartialTar partial(store, TarName(record));
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial.path()));  // of a run that was killed
  WriteRing ring(fs);
  std::optional<PackPool> pool;
  if (options.pack) pool.emplace(PackThreads());
  CAIRN_ASSIGN_OR_RETURN(const auto tar, TarWriter::Create(fs, ring, partial.path(), options.max_tar_bytes));
  CAIRN_RETURN_IF_ERROR(MemberWriter(fs, source, *tar, record, pool ? &*pool : nullptr, progress).Write());
  if (tar->pieces().size() > 1) record.pieces = tar->pieces();
  CAIRN_RETURN_IF_ERROR(source.conclude(record));
  InheritClaims(store, record);
  return partial.Publish(TarName(record), tar->pieces().size());
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
  if (!proof.ok())  // what was read back from the store is not what was written
    return proof.status().WithContext("the store did not keep what was written, nothing was stored");
  ArchiveRecord proven = proof->record();
  if (parity > 0) {
    CAIRN_ASSIGN_OR_RETURN(
        proven.parity, WriteTarParity(store.fs(), store.Path(TarName(proven)), parity, store.Place(proven)));
  }
  CAIRN_RETURN_IF_ERROR(WriteRecord(store, proven));
  return proof;
}

// Writes the tar, proves it, and writes the files beside it. After a failure none of them is left.
Result<ProvenCopy> StoreMember(const Store& store, const MemberFiles& source, ArchiveRecord record,
                               uint64_t bytes, const ByteProgress& progress, const StoreOptions& options) {
  record.claims = options.claims;
  CAIRN_RETURN_IF_ERROR(WriteTar(store, source, record, progress, options));
  ProgressSum written(progress);
  written.Add(bytes);
  Result<ProvenCopy> copy = ProveAndRecord(store, record, written.OnTop(), options.parity);
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

Result<ProvenCopy> StoreStep(const Store& store, const StepReader& step, const ByteProgress& progress,
                             const StoreOptions& options, std::optional<ArchiveRecord> record) {
  if (!step.manifest().shards.empty())
    return NotSupported(
        "{}: it is virtual, its shards are in {}; archive that step, or copy this one by cairn reshape",
        step.directory(), step.DirectoryOf(ShardName(0)));
  CAIRN_RETURN_IF_ERROR(CheckCoverage(step.catalog()).WithContext(step.directory()));
  CAIRN_RETURN_IF_ERROR(CheckRoom(store, TarBytesAtMost(step.manifest()), options));
  if (!record) record = DescribeSource(step);
  return StoreMember(store, FilesOfStep(store.fs(), step, options.pack), *std::move(record),
                     step.manifest().bytes(), progress, options);
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
      return NotSupported("{}: its name ends like a packed file's; rename it first",
                          JoinPath(directory, file.name));
  }
  CAIRN_RETURN_IF_ERROR(CheckRoom(store, tar_bytes, options));
  ArchiveRecord record = DescribeTree(fs, directory, files, links);
  if (EncodeRecord(record).size() + record.files.size() * kRecordRoom > kMaxRecordBytes)
    return NotSupported("{}: more files than the record of an archive holds; archive parts of it", directory);
  record.files.clear();  // each is entered once it is written
  return StoreMember(store,
                     FilesOfTree(fs, directory, std::move(files), links, std::move(sealed), options.pack),
                     std::move(record), bytes, progress, options);
}

Result<ProvenCopy> ProveMember(const Store& store, const ArchiveRecord& record,
                               const ByteProgress& progress) {
  CAIRN_RETURN_IF_ERROR(VerifyTar(store.fs(), store.Place(record), &record, progress).status());
  ProvenCopy copy(record);
  copy.record_.verified_unix_seconds = std::time(nullptr);
  return copy;
}

}  // namespace cairn
