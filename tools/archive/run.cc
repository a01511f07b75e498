#include "tools/archive/run.h"

#include <ctime>
#include <filesystem>

#include "ckpt/layout.h"
#include "convert/partial_dir.h"
#include "convert/sha256.h"
#include "tools/archive/source.h"
#include "tools/archive/tar_writer.h"
#include "tools/archive/verified_copy.h"

namespace cairn {
namespace {

Status RemoveIfThere(FileSystem& fs, const std::string& path) {
  return fs.Stat(path).ok() ? fs.RemoveFile(path) : OkStatus();
}

// Removes a file that was not finished.
class PartialFile {
 public:
  PartialFile(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {}
  ~PartialFile() {
    if (!path_.empty()) (void)fs_.RemoveFile(path_);
  }
  const std::string& path() const { return path_; }
  Status Publish(const std::string& final_path) {
    CAIRN_RETURN_IF_ERROR(fs_.Rename(path_, final_path));
    path_.clear();
    return fs_.SyncDir(std::string(std::filesystem::path(final_path).parent_path()));
  }

 private:
  FileSystem& fs_;
  std::string path_;
};

// Sizes and times of a step's files, to tell whether anyone touched them.
Result<std::vector<std::pair<uint64_t, int64_t>>> Fingerprint(FileSystem& fs, const StepReader& step) {
  std::vector<std::pair<uint64_t, int64_t>> seen;
  const auto add = [&](std::string_view name) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(JoinPath(step.directory(), name)));
    seen.emplace_back(info.bytes, info.modified_unix_seconds);
    return OkStatus();
  };
  CAIRN_RETURN_IF_ERROR(add(kManifestName));
  for (const ManifestFile& file : step.manifest().files) CAIRN_RETURN_IF_ERROR(add(file.name));
  return seen;
}

// Writes the entries of one step, verified on the way.
class StepPacker {
 public:
  StepPacker(FileSystem& fs, const StepReader& step, TarWriter& tar, ArchiveRecord& record,
             const ByteProgress& progress)
      : fs_(fs), step_(step), tar_(tar), record_(record), progress_(progress) {}

  Status Pack() {
    const std::string manifest = EncodeManifest(step_.manifest());
    CAIRN_RETURN_IF_ERROR(Text(kManifestName, manifest, /*record=*/true));
    for (const ManifestFile& file : step_.manifest().files) CAIRN_RETURN_IF_ERROR(Verified(file));
    return Text(kSumsName, Sha256Sums(record_), /*record=*/false);
  }

 private:
  Status Begin(std::string_view name, uint64_t bytes, const std::string& time_of) {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(time_of));
    return tar_.Begin(JoinPath(EntryDirectory(record_), name), bytes, info.modified_unix_seconds);
  }

  Status Text(std::string_view name, std::string_view text, bool record) {
    const auto bytes = std::as_bytes(std::span(text));
    CAIRN_RETURN_IF_ERROR(Begin(name, text.size(), JoinPath(step_.directory(), kManifestName)));
    CAIRN_RETURN_IF_ERROR(tar_.Write(bytes));
    if (!record) return OkStatus();
    Sha256 sha;
    sha.Update(bytes);
    record_.files.push_back({std::string(name), text.size(), sha.FinishHex()});
    return OkStatus();
  }

  Status Verified(const ManifestFile& file) {
    CAIRN_RETURN_IF_ERROR(Begin(file.name, file.bytes, JoinPath(step_.directory(), file.name)));
    Sha256 sha;
    CAIRN_RETURN_IF_ERROR(CopyVerified(fs_, step_, file, [&](std::span<const std::byte> bytes) {
      sha.Update(bytes);
      done_ += bytes.size();
      if (progress_) progress_(done_);
      return tar_.Write(bytes);
    }));
    record_.files.push_back({file.name, file.bytes, sha.FinishHex()});
    return OkStatus();
  }

  FileSystem& fs_;
  const StepReader& step_;
  TarWriter& tar_;
  ArchiveRecord& record_;
  const ByteProgress& progress_;
  uint64_t done_ = 0;
};

// The tar under its final name; the record gets its digests and size.
Status WriteTar(FileSystem& fs, const StepReader& step, const std::string& store, ArchiveRecord& record,
                const ByteProgress& progress) {
  const std::string final_path = JoinPath(store, TarName(record));
  CAIRN_ASSIGN_OR_RETURN(const auto before, Fingerprint(fs, step));
  const std::string partial_path = fmt::format("{}{}", final_path, kPartialSuffix);
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial_path));  // of a run that was killed
  WriteRing ring(fs);
  PartialFile partial(fs, partial_path);
  CAIRN_ASSIGN_OR_RETURN(const auto tar, TarWriter::Create(fs, ring, partial.path()));
  CAIRN_RETURN_IF_ERROR(StepPacker(fs, step, *tar, record, progress).Pack());
  CAIRN_ASSIGN_OR_RETURN(record.tar_bytes, tar->Finish());
  CAIRN_ASSIGN_OR_RETURN(const auto after, Fingerprint(fs, step));
  if (before != after)
    return Corrupt("{}: its files changed while they were read; nothing was stored, run again",
                   step.directory());
  CAIRN_RETURN_IF_ERROR(CheckManifestUnchanged(fs, step.directory(), record.manifest_digest));
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, final_path + ".json"));  // of a tar that was damaged since
  return partial.Publish(final_path);
}

Status WriteRecord(FileSystem& fs, const std::string& store, const ArchiveRecord& record) {
  const std::string final_path = JoinPath(store, TarName(record)) + ".json";
  const std::string partial_path = fmt::format("{}{}", final_path, kPartialSuffix);
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial_path));
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, partial_path, EncodeRecord(record)));
  return PartialFile(fs, partial_path).Publish(final_path);
}

}  // namespace

uint64_t TarBytesAtMost(const Manifest& manifest) {
  uint64_t bytes = 2 * TarEntryBytes(EncodeManifest(manifest).size()) + (1 << 20);  // SHA256SUMS is shorter
  for (const ManifestFile& file : manifest.files) bytes += TarEntryBytes(file.bytes);
  return bytes;
}

Result<std::optional<ArchiveRecord>> FindStored(FileSystem& fs, const std::string& store,
                                                const ArchiveRecord& wanted) {
  if (!fs.Stat(store).ok()) return std::optional<ArchiveRecord>();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore(fs, store));
  for (const ArchiveMember& member : members)
    if (member.state == MemberState::kVerified && member.record->manifest_digest == wanted.manifest_digest)
      return member.record;
  return std::optional<ArchiveRecord>();
}

Result<ProvenCopy> StoreStep(FileSystem& fs, const StepReader& step, const std::string& store,
                             const ByteProgress& progress) {
  ArchiveRecord record = DescribeSource(step);
  CAIRN_RETURN_IF_ERROR(CheckCoverage(step.catalog()).WithContext(step.directory()));
  CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, store, TarBytesAtMost(step.manifest())));
  CAIRN_RETURN_IF_ERROR(WriteTar(fs, step, store, record, progress));
  const uint64_t written = step.manifest().bytes();
  const auto proof = ProveMember(fs, store, record, [&](uint64_t read) {
    if (progress) progress(written + read);
  });
  if (!proof.ok()) {  // what the store gives back is not what it was given
    (void)fs.RemoveFile(JoinPath(store, TarName(record)));
    return proof.status().WithContext("the store did not keep what was written, nothing was stored");
  }
  CAIRN_RETURN_IF_ERROR(WriteRecord(fs, store, proof->record()));
  return proof;
}

Result<ProvenCopy> ProveMember(FileSystem& fs, const std::string& store, const ArchiveRecord& record,
                               const ByteProgress& progress) {
  const VerifyReport report = VerifyTar(fs, store, TarName(record), &record, progress);
  if (!report.problems.empty()) return Corrupt("{}", ToString(report.problems.front()));
  ProvenCopy copy(record);
  copy.record_.verified_unix_seconds = std::time(nullptr);
  return copy;
}

}  // namespace cairn
