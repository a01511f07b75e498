// A file is divided into regions: the chunks of its pieces in order of offset, and between them the envelope.
// One scan from front to back then puts each byte under exactly one digest. A wrong chunk becomes a problem
// and the scan continues; only a file that cannot be read ends it. Threads take whole files. Each file has a
// report of its own: the order of problems does not depend on the threads.

#include "ckpt/step/verify.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "ckpt/base/posix_error.h"
#include "ckpt/base/threads.h"
#include "ckpt/io/file_scan.h"
#include "ckpt/model/piece.h"
#include "ckpt/step/chunk_decoder.h"

namespace cairn {
namespace {

// A run of bytes of the file under one digest: a chunk of a piece, or a stretch of the envelope (piece is
// null).
struct FileRegion {
  uint64_t begin;
  uint64_t end;
  const Piece* piece;
  uint64_t chunk;
};

std::vector<Piece> PiecesOfFile(const StepCatalog& catalog, const std::string& name) {
  const auto file = static_cast<uint32_t>(std::ranges::find(catalog.files, name) - catalog.files.begin());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < catalog.pieces.size(); ++i)
    if (catalog.pieces.FileOf(i) == file) pieces.push_back(catalog.pieces[i]);
  return pieces;
}

// `pieces` are those of the file.
std::vector<FileRegion> FileRegionsOf(const StepCatalog& catalog, const std::vector<Piece>& pieces,
                                      uint64_t file_bytes) {
  std::vector<FileRegion> chunks;
  for (const Piece& piece : pieces) {
    for (uint64_t chunk = 0; chunk < piece.chunks.size(); ++chunk) {
      const ChunkPlace place = PlaceOfChunk(piece, chunk, SizeOf(catalog.tensors[piece.tensor].dtype));
      if (place.stored_bytes == 0) continue;  // derived
      chunks.push_back({place.offset, place.offset + place.stored_bytes, &piece, chunk});
    }
  }
  std::ranges::sort(chunks, {}, &FileRegion::begin);
  std::vector<FileRegion> regions;
  uint64_t at = 0;
  for (const FileRegion& chunk : chunks) {
    if (at < chunk.begin) regions.push_back({at, chunk.begin, nullptr, 0});
    regions.push_back(chunk);
    at = std::max(at, chunk.end);
  }
  if (at < file_bytes) regions.push_back({at, file_bytes, nullptr, 0});
  return regions;
}

using Sink = std::function<Status(std::span<const std::byte>)>;

Status ScanRegion(FileScan& scan, const FileRegion& region, const Sink& sink) {
  while (scan.offset() < region.end) {
    CAIRN_ASSIGN_OR_RETURN(const auto bytes, scan.Next(region.end - scan.offset()));
    CAIRN_RETURN_IF_ERROR(sink(bytes));
  }
  return OkStatus();
}

// Sets `wrong` if a chunk does not match its digest; fails if it cannot be read. The buffers are
// scratch memory.
Status CheckChunk(FileScan& scan, const FileRegion& region, uint64_t element_bytes, uint64_t seed,
                  const Sink& sink, std::vector<std::byte>& stored, std::vector<std::byte>& decoded,
                  Status& wrong) {
  const ChunkPlace place = PlaceOfChunk(*region.piece, region.chunk, element_bytes);
  Hasher hasher(seed);
  stored.clear();
  CAIRN_RETURN_IF_ERROR(ScanRegion(scan, region, [&](std::span<const std::byte> bytes) {
    if (place.encoded)
      stored.insert(stored.end(), bytes.begin(), bytes.end());
    else
      hasher.Update(bytes);
    return sink(bytes);
  }));
  if (place.encoded) {
    decoded.resize(place.bytes);
    wrong = DecodeChunk(*region.piece, region.chunk, element_bytes, seed, stored, decoded);
  } else if (hasher.Finish() != region.piece->chunks[region.chunk]) {
    wrong = Corrupt("does not match its digest");
  }
  return OkStatus();
}

}  // namespace

std::string ToString(const Problem& p) {
  const std::string tensor = p.tensor.empty() ? "" : "tensor " + p.tensor + ": ";
  if (p.offset) return fmt::format("{} at byte {}: {}{}", p.file, *p.offset, tensor, p.what);
  const bool named = tensor.empty() && p.what.starts_with(p.file);
  return named ? p.what : fmt::format("{}: {}{}", p.file, tensor, p.what);
}

bool CheckSize(FileSystem& fs, const std::string& directory, const ManifestFile& file, VerifyReport& report) {
  const std::string path = JoinPath(directory, file.name);
  const Result<FileInfo> info = fs.Stat(path);
  if (info.ok() && info->bytes == file.bytes) return true;
  if (!info.ok())
    report.Add(info.status(), path);
  else
    report.problems.push_back(
        {path, std::min(info->bytes, file.bytes), "",
         fmt::format("has {} bytes, but its manifest says {}; it was truncated or replaced", info->bytes,
                     file.bytes)});
  return false;
}

Status VerifyShard(FileSystem& fs, const ShardToVerify& shard, VerifyReport& report, const Sink& sink,
                   bool may_map) {
  const auto& [directory, file, catalog, identity] = shard;
  const std::string path = JoinPath(directory, file.name);
  CAIRN_ASSIGN_OR_RETURN(const auto scan, FileScan::Open(fs, path, file.bytes, Direct::kAuto, may_map));
  std::vector<std::byte> stored, decoded;
  Hasher envelope;
  uint64_t envelope_offset = 0;
  const std::vector<Piece> pieces = PiecesOfFile(catalog, file.name);
  for (const FileRegion& region : FileRegionsOf(catalog, pieces, file.bytes)) {
    const bool is_envelope = region.piece == nullptr;
    if (is_envelope) envelope_offset = region.begin;
    const auto each = [&](std::span<const std::byte> bytes) {
      report.bytes_checked += bytes.size();
      if (is_envelope) envelope.Update(bytes);
      return sink ? sink(bytes) : OkStatus();
    };
    if (is_envelope) {
      CAIRN_RETURN_IF_ERROR(ScanRegion(*scan, region, each));
      continue;
    }
    const TensorEntry& tensor = catalog.tensors[region.piece->tensor];
    const uint64_t seed =
        PieceSeed(identity.run, identity.step, tensor, region.piece->box, region.piece->range) + region.chunk;
    Status wrong;
    CAIRN_RETURN_IF_ERROR(
        CheckChunk(*scan, region, SizeOf(tensor.dtype), seed, each, stored, decoded, wrong));
    if (!wrong.ok()) report.problems.push_back({path, region.begin, DisplayName(tensor), wrong.message()});
  }
  if (envelope.Finish() != file.digest)
    report.problems.push_back({path, envelope_offset, "",
                               "the file's own structure (not a tensor's data) does not match its digest"});
  return OkStatus();
}

void VerifyReport::Add(const Status& failed, std::string file, std::optional<uint64_t> offset,
                       std::string tensor) {
  if (IsRefusal(failed)) {
    if (trouble.ok()) trouble = failed;
  } else {
    problems.push_back({std::move(file), offset, std::move(tensor), failed.message()});
  }
}

void VerifyReport::Join(VerifyReport other) {
  std::ranges::move(other.problems, std::back_inserter(problems));
  if (trouble.ok()) trouble = std::move(other.trouble);
}

Status VerifyReport::status() const {
  return problems.empty() ? trouble : Corrupt("{}", ToString(problems.front()));
}

Status ReadBackShard(FileSystem& fs, const std::string& directory, const ShardReceipt& receipt,
                     const StepIdentity& identity) {
  VerifyReport report;
  CAIRN_RETURN_IF_ERROR(
      VerifyShard(fs, {directory, receipt.file, PackCatalog(receipt.catalog), identity}, report));
  return report.status();
}

VerifyReport VerifyHash(FileSystem& fs, const StepReader& step, const std::function<void(uint64_t)>& progress,
                        int jobs) {
  const StepIdentity identity{step.manifest().run, step.manifest().step};
  const std::vector<ManifestFile>& files = step.manifest().files;
  std::vector<VerifyReport> reports(files.size());
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  uint64_t done = 0;
  const auto tell = [&](std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex);
    done += bytes.size();
    if (progress) progress(done);
    return OkStatus();
  };
  const auto work = [&] {
    for (size_t i = next++; i < files.size(); i = next++) {
      VerifyReport& report = reports[i];
      const ShardToVerify file{step.DirectoryOf(files[i].name), files[i], step.catalog(), identity};
      const Status status = VerifyShard(fs, file, report, tell);
      if (!status.ok()) report.Add(status, JoinPath(file.directory, files[i].name));
    }
  };
  RunOnThreads(std::min<int>(jobs, static_cast<int>(files.size())), work);
  VerifyReport all{.problems = {}, .bytes_checked = done};
  for (VerifyReport& report : reports) all.Join(std::move(report));
  return all;
}

VerifyReport VerifyStructure(const StepReader& step) {
  VerifyReport report;
  const Status status = CheckCoverage(step.catalog());
  if (!status.ok()) report.Add(status, step.directory());
  return report;
}

}  // namespace cairn
