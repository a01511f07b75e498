// The steps follow the order of durability: the writer syncs files and directories, the proof reads them,
// SHA256SUMS lists the digests of the proof, the directory gets its name, and its parent is synced.
//
// The proof reads every file once, past the page cache. The format's own reader must find exactly these
// tensors. The sums of the values must equal those of the stream. Headers, pickles, constants and texts must
// equal the planned bytes.

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
#include "convert/transfer/writers.h"

namespace cairn {
namespace {

constexpr uint64_t kBufferBytes = 2 << 20;

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
    while (FindPlaced(end)) {
      const PlacedBytes& placed = frame_[next_];
      const uint64_t begin = std::max(at_, placed.offset), placed_end = placed.offset + placed.bytes.size();
      const uint64_t last = std::min(end, placed_end);
      const auto meant = std::as_bytes(std::span(placed.bytes)).subspan(begin - placed.offset, last - begin);
      if (!std::ranges::equal(bytes.subspan(begin - at_, last - begin), meant)) differs_ = true;
      if (placed_end > end) break;
      ++next_;
    }
    at_ = end;
    if (at_ == file_.bytes) Finish();
  }
  // Once all bytes were added.
  Status Check(const std::string& directory) {
    if (at_ == 0) Begin(), Finish();  // an empty file
    if (!differs_ && at_ == file_.bytes) return OkStatus();
    return Corrupt(
        "{}: what was read back is not what was written (outside tensors); check the disk and try again",
        JoinPath(directory, file_.name));
  }
  const std::string& name() const { return file_.name; }
  const std::string& sha256() const { return sha256_; }

 private:
  void Begin() {
    if (!file_.text.empty()) frame_ = {{0, file_.text}};
    if (wants_sha256_) sha_.emplace();
  }
  // True if frame_[next_] begins before `end`. Goes on to the next container after the last of a frame.
  bool FindPlaced(uint64_t end) {
    const std::vector<uint32_t>& containers = writer_.ContainersOf(number_);
    while (next_ == frame_.size() && containers_ < containers.size() &&
           writer_.OffsetOf(containers[containers_]) < end) {
      frame_ = writer_.Frame(containers[containers_++]);
      next_ = 0;
    }
    return next_ < frame_.size() && frame_[next_].offset < end;
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
  std::vector<PlacedBytes> frame_;  // of the container that is read
  size_t next_ = 0;                 // in it
  size_t containers_ = 0;           // that were begun
  uint64_t at_ = 0;
  bool differs_ = false;
  std::optional<BackgroundSha256> sha_;  // while the file is read: it has a thread
  std::string sha256_;
};

class FileWriting {
 public:
  FileWriting(FileSystem& fs, const Transfer& transfer, const FilesTarget& target)
      : fs_(fs),
        transfer_(transfer),
        target_(target),
        files_(target.files),
        advance_(Accumulated(transfer.progress)),
        stream_(StreamOf(transfer, advance_)) {}

  Result<TransferResult> Run(const std::string& path) {
    CAIRN_RETURN_IF_ERROR(ClearPlace(fs_, path));
    CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs_, path, files_.bytes()));
    CAIRN_ASSIGN_OR_RETURN(PartialDir partial, PartialDir::MakeFor(fs_, path, {.files = FileNames()}));
    std::optional<WriteRing> ring(std::in_place, fs_, RingOfFiles(transfer_.writer));
    CAIRN_ASSIGN_OR_RETURN(const auto writer,
                           StoredWriter::Create(fs_, *ring, partial.path(), files_, transfer_.writer.direct));
    CAIRN_RETURN_IF_ERROR(stream_.RunAll(*writer));
    CAIRN_RETURN_IF_ERROR(transfer_.source.CheckRead());
    TransferResult result = OutcomeOf(transfer_, stream_);
    if (result.overflowed) return result;
    CAIRN_RETURN_IF_ERROR(
        writer->Finish(result.fingerprints.overall, result.quantization.error.relative_norm()));
    ring.reset();  // the proof needs its memory
    CAIRN_RETURN_IF_ERROR(Prove(*writer, partial.path()));
    if (target_.sha256sums) CAIRN_RETURN_IF_ERROR(WriteSums(partial.path()));
    CAIRN_RETURN_IF_ERROR(partial.Publish());
    result.path = path;
    result.bytes_written = files_.bytes() + sums_bytes_;
    result.files = files_.files.size() + (target_.sha256sums ? 1 : 0);
    return result;
  }

 private:
  std::vector<std::string> FileNames() const {
    std::vector<std::string> names{std::string(kSha256SumsName)};
    for (const TargetFile& file : files_.files) names.push_back(file.name);
    return names;
  }

  Status Prove(const StoredWriter& writer, const std::string& directory) {
    const std::string& below = target_.directory;
    const std::string opened = below.empty() ? directory : JoinPath(directory, below);
    OpenOptions open;
    open.format = target_.reader;
    open.dequantized.reset();  // as it was written
    const auto reader = OpenForeign(fs_, opened, open);
    if (!reader.ok())
      return Corrupt("{}: what was read back is not what was written ({}); check the disk and try again",
                     opened, reader.status().message());
    const StoredCatalog& found = *(*reader)->stored();
    const std::string& root = (*reader)->directory();
    std::map<std::string, FileProof> proofs;
    for (uint32_t i = 0; i < files_.files.size(); ++i) {
      const std::string& name = files_.files[i].name;
      proofs.try_emplace(name, writer, i, files_.files[i], target_.sha256sums);
    }
    std::vector<FileProof*> proof_of;  // of each file that the reader found tensors in
    std::set<std::string> scanned;
    for (const std::string& file : found.files) {
      const std::string name = JoinPath(root, file).substr(directory.size() + 1);
      const auto proof = proofs.find(name);
      if (proof == proofs.end())
        return Corrupt("{}: unexpected file in the result", JoinPath(directory, name));
      proof_of.push_back(&proof->second);
      scanned.insert(name);
    }
    StepFingerprint sums(found.tensors);
    const auto raw = [&](uint32_t file, std::span<const std::byte> bytes) {
      proof_of[file]->Add(bytes);
      if (advance_) advance_(bytes.size());
    };
    CAIRN_RETURN_IF_ERROR(
        ScanStored(fs_, root, found, {.sums = sums, .raw = raw, .threads = transfer_.writer.jobs}));
    CAIRN_RETURN_IF_ERROR(stream_.Compare(opened, found, sums));
    for (auto& [name, proof] : proofs) {
      if (!scanned.contains(name)) CAIRN_RETURN_IF_ERROR(ScanPlain(directory, proof));
      CAIRN_RETURN_IF_ERROR(proof.Check(directory));
      if (target_.sha256sums) sums_[name] = proof.sha256();
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
      if (advance_) advance_(bytes.size());
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
  const Transfer& transfer_;
  const FilesTarget& target_;
  const StoredTarget& files_;
  const std::function<void(uint64_t)> advance_;
  TensorStream stream_;
  std::map<std::string, std::string> sums_;  // SHA-256 of each file
  uint64_t sums_bytes_ = 0;
};

}  // namespace

WriteRingOptions RingOfFiles(const WriterOptions& writer) {
  return {.buffer_bytes = kBufferBytes, .in_flight = std::max(4, 2 * writer.jobs)};
}

Result<TransferResult> WriteFiles(FileSystem& fs, const Transfer& transfer, const FilesTarget& target,
                                  const std::string& path) {
  return FileWriting(fs, transfer, target).Run(path);
}

}  // namespace cairn
