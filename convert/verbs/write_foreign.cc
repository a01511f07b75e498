// The steps follow the order of durability: the writer syncs files and directories, the proof reads them,
// SHA256SUMS lists the digests of the proof, the directory gets its name, and its parent is synced.

#include "convert/verbs/write_foreign.h"

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/base/background_sha256.h"
#include "ckpt/base/sha256_sums.h"
#include "ckpt/io/file_scan.h"
#include "ckpt/step/partial_dir.h"
#include "convert/foreign/stored_scan.h"
#include "convert/foreign/stored_writer.h"
#include "convert/formats/systems.h"

namespace cairn {
namespace {

constexpr uint64_t kBufferBytes = 1 << 20;

// Checks the bytes of a file outside of its tensors, and takes its SHA-256, while it is read back.
class FileProof {
 public:
  // `number`: of the file in `writer`, which must outlive this.
  FileProof(const StoredWriter& writer, uint32_t number, const TargetFile& file, bool sha256)
      : writer_(writer), number_(number), file_(file), wants_sha256_(sha256) {}

  // The next bytes of the file.
  void Add(std::span<const std::byte> bytes) {
    if (at_ == 0) Begin();
    if (sha_) sha_->Update(bytes);
    const uint64_t end = at_ + bytes.size();
    while (next_ < frame_.size() && frame_[next_].offset + frame_[next_].bytes.size() <= at_) ++next_;
    for (size_t i = next_; i < frame_.size() && frame_[i].offset < end; ++i) {
      const uint64_t begin = std::max(at_, frame_[i].offset);
      const uint64_t last = std::min(end, frame_[i].offset + frame_[i].bytes.size());
      const auto meant =
          std::as_bytes(std::span(frame_[i].bytes)).subspan(begin - frame_[i].offset, last - begin);
      if (!std::ranges::equal(bytes.subspan(begin - at_, last - begin), meant)) differs_ = true;
    }
    at_ = end;
    if (at_ == file_.bytes) Finish();
  }
  // Once all bytes were added.
  Status Check(const std::string& directory) {
    if (at_ == 0) Begin(), Finish();  // an empty file
    if (!differs_ && at_ == file_.bytes) return OkStatus();
    return Corrupt(
        "{}: what is read back is not what was written (beside its tensors); check the disk and try again",
        JoinPath(directory, file_.name));
  }
  const std::string& name() const { return file_.name; }
  const std::string& sha256() const { return sha256_; }

 private:
  void Begin() {
    frame_ = writer_.Frame(number_);
    if (wants_sha256_) sha_.emplace();
  }
  void Finish() {
    frame_.clear();
    if (sha_) sha256_ = sha_->FinishHex();
    sha_.reset();
  }

  const StoredWriter& writer_;
  const uint32_t number_;
  const TargetFile& file_;
  const bool wants_sha256_;
  std::vector<PlacedBytes> frame_;  // while the file is read
  size_t next_ = 0;
  uint64_t at_ = 0;
  bool differs_ = false;
  std::optional<BackgroundSha256> sha_;  // while the file is read: it has a thread
  std::string sha256_;
};

class ForeignWriting {
 public:
  ForeignWriting(FileSystem& fs, CheckpointSource& source, StoredTarget target,
                 const WriteForeignOptions& options)
      : fs_(fs),
        source_(source),
        target_(std::move(target)),
        options_(options),
        stream_(source, target_.tensors, options.stream) {}

  Result<TransferResult> Run(const std::string& path) {
    if (fs_.Stat(path).ok())
      return AlreadyExists("{} is there already and is never overwritten; choose another directory", path);
    CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs_, path, target_.bytes()));
    CAIRN_ASSIGN_OR_RETURN(PartialDir partial, PartialDir::MakeFor(fs_, path));
    WriteRing ring(fs_, ForeignRing(options_.writer));
    CAIRN_ASSIGN_OR_RETURN(const auto writer,
                           StoredWriter::Create(fs_, ring, partial.path(), target_, options_.writer.direct));
    source_.SetCacheBytes(ReaderCacheFor(options_.writer.max_memory));
    CAIRN_RETURN_IF_ERROR(stream_.RunAll(*writer));
    CAIRN_RETURN_IF_ERROR(source_.CheckRead());
    source_.SetCacheBytes(0);
    TransferResult result = stream_.Outcome();
    if (result.overflowed) return result;
    CAIRN_RETURN_IF_ERROR(writer->Finish(result.fingerprints.overall));
    CAIRN_RETURN_IF_ERROR(Prove(*writer, partial.path()));
    if (options_.sha256sums) CAIRN_RETURN_IF_ERROR(WriteSums(partial.path()));
    CAIRN_RETURN_IF_ERROR(partial.Publish());
    result.path = path;
    result.bytes_written = target_.bytes() + sums_bytes_;
    result.files = target_.files.size() + (options_.sha256sums ? 1 : 0);
    return result;
  }

 private:
  Status Prove(const StoredWriter& writer, const std::string& directory) {
    const std::string& below = options_.directory;
    const std::string opened = below.empty() ? directory : JoinPath(directory, below);
    OpenOptions open;
    open.format = options_.reader;
    const auto reader = OpenForeign(fs_, opened, open);
    if (!reader.ok())
      return Corrupt("{}: what is read back is not what was written ({}); check the disk and try again",
                     opened, reader.status().message());
    const StoredCatalog& found = *(*reader)->stored();
    const std::string& root = (*reader)->directory();
    std::map<std::string, FileProof> proofs;
    for (uint32_t i = 0; i < target_.files.size(); ++i) {
      const std::string& name = target_.files[i].name;
      proofs.try_emplace(name, writer, i, target_.files[i], options_.sha256sums);
    }
    std::vector<FileProof*> proof_of;  // of each file that the reader found tensors in
    std::set<std::string> scanned;
    for (const std::string& file : found.files) {
      const std::string name = JoinPath(root, file).substr(directory.size() + 1);
      const auto proof = proofs.find(name);
      if (proof == proofs.end()) return Corrupt("{}: nobody wrote it", JoinPath(directory, name));
      proof_of.push_back(&proof->second);
      scanned.insert(name);
    }
    StepFingerprint sums(found);
    CAIRN_RETURN_IF_ERROR(
        ScanStored(fs_, root, found,
                   {.see = [&](uint32_t tensor, uint64_t begin,
                               std::span<const std::byte> bytes) { sums.of(tensor).Add(begin, bytes); },
                    .raw =
                        [&](uint32_t file, std::span<const std::byte> bytes) {
                          proof_of[file]->Add(bytes);
                          if (options_.stream.advance) options_.stream.advance(bytes.size());
                        }}));
    CAIRN_RETURN_IF_ERROR(stream_.Compare(opened, found, sums));
    for (auto& [name, proof] : proofs) {
      if (!scanned.contains(name)) CAIRN_RETURN_IF_ERROR(ScanPlain(directory, proof));
      CAIRN_RETURN_IF_ERROR(proof.Check(directory));
      if (options_.sha256sums) sums_[name] = proof.sha256();
    }
    return OkStatus();
  }

  // A file without tensors.
  Status ScanPlain(const std::string& directory, FileProof& proof) {
    const std::string path = JoinPath(directory, proof.name());
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(path));
    CAIRN_ASSIGN_OR_RETURN(const auto scan, FileScan::Open(fs_, path, info.bytes));
    while (scan->offset() < info.bytes) {
      CAIRN_ASSIGN_OR_RETURN(const auto bytes, scan->Next(kBufferBytes));
      proof.Add(bytes);
    }
    return OkStatus();
  }

  Status WriteSums(const std::string& directory) {
    std::string text;
    for (const auto& [name, sha] : sums_) text += Sha256Line(sha, name);
    sums_bytes_ = text.size();
    CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs_, JoinPath(directory, std::string(kSha256SumsName)), text));
    return fs_.SyncDir(directory);
  }

  FileSystem& fs_;
  CheckpointSource& source_;
  const StoredTarget target_;
  const WriteForeignOptions& options_;
  TensorStream stream_;
  std::map<std::string, std::string> sums_;  // SHA-256 of each file
  uint64_t sums_bytes_ = 0;
};

}  // namespace

WriteRingOptions ForeignRing(const StepBuilderOptions& writer) {
  return {.buffer_bytes = kBufferBytes, .in_flight = std::max(4, 2 * writer.jobs)};
}

Result<TransferCost> CostOfFiles(const CheckpointSource& source, const StoredTarget& target) {
  const RegionList wanted = target.Wanted();
  CAIRN_ASSIGN_OR_RETURN(const CopyProgram program, PlanCopies(source.catalog(), source.regions(), wanted));
  TransferCost cost{.plan = SizeOf(program, source.catalog(), source.regions(), wanted),
                    .file_bytes = target.bytes(),
                    .files = target.files.size()};
  for (const uint32_t tensor : SourcesOf(target.tensors))
    cost.read_bytes += source.catalog().tensors[tensor].bytes();
  cost.moved_bytes = cost.read_bytes + cost.file_bytes;
  return cost;
}

Result<TransferResult> WriteForeign(FileSystem& fs, CheckpointSource& source, StoredTarget target,
                                    std::string path, const WriteForeignOptions& options) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return ForeignWriting(fs, source, std::move(target), options).Run(path);
}

}  // namespace cairn
