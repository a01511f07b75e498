#include "ckpt/verify.h"

#include <algorithm>

#include "ckpt/chunk_decoder.h"

namespace cairn {
namespace {

// A run of bytes of the file under one digest: a chunk of a piece, or a stretch of the frame (piece is null).
struct Region {
  uint64_t begin;
  uint64_t end;
  const Piece* piece;
  uint64_t chunk;
};

std::vector<Piece> PiecesOfFile(const StepCatalog& catalog, uint32_t file) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < catalog.pieces.size(); ++i)
    if (catalog.pieces.FileOf(i) == file) pieces.push_back(catalog.pieces[i]);
  return pieces;
}

// `pieces` are those of the file.
std::vector<Region> RegionsOf(const StepCatalog& catalog, const std::vector<Piece>& pieces,
                              uint64_t file_bytes) {
  std::vector<Region> chunks;
  for (const Piece& piece : pieces) {
    for (uint64_t chunk = 0; chunk < piece.chunks.size(); ++chunk) {
      const ChunkPlace place = PlaceOfChunk(piece, chunk, SizeOf(catalog.tensors[piece.tensor].dtype));
      chunks.push_back({place.offset, place.offset + place.stored_bytes, &piece, chunk});
    }
  }
  std::ranges::sort(chunks, {}, &Region::begin);
  std::vector<Region> regions;
  uint64_t at = 0;
  for (const Region& chunk : chunks) {
    if (at < chunk.begin) regions.push_back({at, chunk.begin, nullptr, 0});
    regions.push_back(chunk);
    at = std::max(at, chunk.end);
  }
  if (at < file_bytes) regions.push_back({at, file_bytes, nullptr, 0});
  return regions;
}

}  // namespace

std::string ToString(const Problem& p) {
  return fmt::format("{} at byte {}: {}{}", p.file, p.offset,
                     p.tensor.empty() ? "" : "tensor " + p.tensor + ": ", p.what);
}

Status VerifyShard(FileSystem& fs, const std::string& directory, const ManifestFile& file,
                   const StepCatalog& catalog, uint32_t file_index, const std::string& run, int64_t step,
                   VerifyReport& report) {
  const std::string path = JoinPath(directory, file.name);
  CAIRN_ASSIGN_OR_RETURN(const auto handle, fs.OpenForRead(path));
  std::vector<std::byte> window(std::min(kChunkBytes, file.bytes)), decoded;
  Hasher frame;
  uint64_t frame_offset = 0;
  const std::vector<Piece> pieces = PiecesOfFile(catalog, file_index);
  for (const Region& region : RegionsOf(catalog, pieces, file.bytes)) {
    for (uint64_t at = region.begin; at < region.end;) {
      const std::span bytes(window.data(), std::min<uint64_t>(window.size(), region.end - at));
      CAIRN_RETURN_IF_ERROR(handle->ReadAt(at, bytes));
      report.bytes_checked += bytes.size();
      if (region.piece == nullptr) {
        frame.Update(bytes);
      } else {
        const TensorEntry& tensor = catalog.tensors[region.piece->tensor];
        const uint64_t seed =
            PieceSeed(run, step, tensor, region.piece->box, region.piece->range) + region.chunk;
        const uint64_t element_bytes = SizeOf(tensor.dtype);
        const ChunkPlace place = PlaceOfChunk(*region.piece, region.chunk, element_bytes);
        if (place.encoded) decoded.resize(place.bytes);
        const Status status = DecodeChunk(*region.piece, region.chunk, element_bytes, seed, bytes,
                                          place.encoded ? std::span(decoded) : bytes);
        if (!status.ok()) report.problems.push_back({path, at, DisplayName(tensor), status.message()});
      }
      at += bytes.size();
    }
    if (region.piece == nullptr) frame_offset = region.begin;
  }
  if (frame.Finish() != file.digest)
    report.problems.push_back(
        {path, frame_offset, "", "the file's own structure (not a tensor's data) does not match its digest"});
  return OkStatus();
}

VerifyReport VerifyHash(FileSystem& fs, const StepReader& step,
                        const std::function<void(uint64_t)>& progress) {
  VerifyReport report;
  const StepCatalog& catalog = step.catalog();
  for (const ManifestFile& file : step.manifest().files) {
    const auto found = std::ranges::find(catalog.files, file.name);
    const auto index =
        static_cast<uint32_t>(found - catalog.files.begin());  // index.h5: no piece has that number
    const Status status = VerifyShard(fs, step.directory(), file, catalog, index, step.manifest().run,
                                      step.manifest().step, report);
    if (!status.ok())
      report.problems.push_back({JoinPath(step.directory(), file.name), 0, "", status.message()});
    if (progress) progress(report.bytes_checked);
  }
  return report;
}

VerifyReport VerifyStructure(const StepReader& step) {
  VerifyReport report;
  const Status status = CheckCoverage(step.catalog());
  if (!status.ok()) report.problems.push_back({step.directory(), 0, "", status.message()});
  return report;
}

}  // namespace cairn
