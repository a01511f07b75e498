// open_bench make DIR whole|cut, then open_bench DIR: how long it takes to open a step of 100 000 tensors in
// 64 shards and to plan what one of 64 ranks (TP=8 PP=8) reads of it, and the memory that it takes.
//
// whole: each tensor is one piece. cut: as TP=8 PP=8 saves it, eight pieces of each tensor that TP cuts. The
// steps are metadata only: the shards are sparse files without bytes, the index holds nothing but the
// catalog.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <string>

#include "ckpt/base/proc_memory.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/placement.h"
#include "ckpt/step/seal.h"
#include "ckpt/step/step_reader.h"
#include "tests/support/make_step.h"

namespace cairn {
namespace {

constexpr Topology kRanks{8, 8, 1, 1};
constexpr int kLayers = 1562;  // of 16 parameters in 4 roles
constexpr Role kRoles[] = {Role::kWeight, Role::kMaster, Role::kExpAvg, Role::kExpAvgSq};

Status MakeSparse(const std::string& path, uint64_t bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return IoError("cannot make {}", path);
  ::close(fd);
  return OkStatus();
}

Result<Catalog> MakeCatalog(bool cut) {
  const std::vector<ParameterSpec> specs =
      SpecsOf({.layers = kLayers, .hidden = 256, .heads = 8, .ffn = 1024, .vocab = 4096, .positions = 512});
  Catalog catalog;
  for (const ParameterSpec& spec : specs)
    for (const Role role : kRoles)
      catalog.tensors.push_back({spec, role, role == Role::kWeight ? Dtype::kBF16 : Dtype::kF32});
  for (int i = 0; i < kRanks.world(); ++i) catalog.files.push_back(ShardName(i));
  std::vector<uint64_t> ends(kRanks.world(), kPageBytes);
  const auto add = [&](uint32_t tensor, uint32_t file, const Box& box, FlatRange range) {
    const uint64_t bytes = range.size() * SizeOf(catalog.tensors[tensor].dtype);
    Piece piece{.tensor = tensor,
                .file = file,
                .box = box,
                .range = range,
                .file_offset = ends[file],
                .stored_bytes = bytes};
    piece.chunks.resize(ChunkCount(bytes));
    ends[file] += (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    catalog.pieces.push_back(std::move(piece));
  };
  for (uint32_t t = 0; !cut && t < catalog.tensors.size(); ++t) {
    const Dims& shape = catalog.tensors[t].spec.shape;
    add(t, t % kRanks.world(), Box::Whole(shape), {0, shape.Volume()});
  }
  for (int rank = 0; cut && rank < kRanks.world(); ++rank) {
    const Coordinates at = kRanks.At(rank);
    CAIRN_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(specs, kRanks, at.tp, at.pp));
    for (const PlacedPiece& placed : PiecesOf(layout, at.dp))
      for (uint32_t role = 0; role < std::size(kRoles); ++role)
        add(placed.index * 4 + role, rank, placed.box, placed.range);
  }
  catalog.SortPieces();
  return catalog;
}

Status Make(const std::string& directory, bool cut) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, directory));
  CAIRN_ASSIGN_OR_RETURN(const Catalog catalog, MakeCatalog(cut));
  CAIRN_RETURN_IF_ERROR(CheckCoverage(catalog));
  const std::string blob = EncodeCatalog(catalog);
  Manifest manifest{.run = "0123456789abcdef0123456789abcdef", .step = 1, .topology = kRanks};
  for (uint32_t file = 0; file < catalog.files.size(); ++file) {
    uint64_t end = 0;
    for (const Piece& piece : catalog.pieces)
      if (piece.file == file) end = std::max(end, piece.file_offset + piece.stored_bytes);
    manifest.files.push_back({catalog.files[file], end});
    CAIRN_RETURN_IF_ERROR(MakeSparse(JoinPath(directory, catalog.files[file]), end));
  }
  manifest.files.push_back({std::string(kIndexName), blob.size(), DigestOf(blob)});
  manifest.catalog_bytes = blob.size();
  manifest.catalog_digest = DigestOf(blob);
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, JoinPath(directory, kIndexName), blob));
  return WriteSmallFile(fs, JoinPath(directory, kManifestName), EncodeManifest(manifest));
}

// One thread's work: of the processor, so that what else runs there does not count.
double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double PeakMiB() { return static_cast<double>(PeakMemoryBytes()) / (1 << 20); }

Status Measure(const std::string& directory) {
  const auto ms = [](double a, double b) { return 1e3 * (b - a); };
  const double memory = PeakMiB();
  const auto start = CpuSeconds();
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(FileSystem::Posix(), directory));
  const auto& catalog = step->catalog();
  const auto opened = CpuSeconds();
  const std::vector<ParameterSpec> specs = catalog.Parameters();
  CAIRN_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(specs, kRanks, 3, 5));
  uint64_t pieces = 0, elements = 0;
  for (const LocalParameter& local : layout.parameters) {
    for (const Role role : kRoles) {
      CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, catalog.Find(specs[local.index].name, role));
      const auto [first, last] = catalog.PiecesOfTensor(tensor);
      for (size_t i = first; i < last; ++i) {
        const Piece& piece = catalog.pieces[i];
        const std::optional<Box> common = Intersect(piece.box, local.box);
        if (!common) continue;
        ++pieces;
        elements += common->Volume();
      }
    }
  }
  const auto planned = CpuSeconds();
  if (elements != 4 * layout.flat_size) return Corrupt("the plan covers {} elements", elements);
  std::printf(
      "%zu tensors, %zu pieces, %llu of them for the rank: open %.1f ms, plan %.1f ms, memory %.1f MiB\n",
      catalog.tensors.size(), catalog.pieces.size(), static_cast<unsigned long long>(pieces),
      ms(start, opened), ms(opened, planned), PeakMiB() - memory);
  return OkStatus();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const bool make = argc == 4 && std::string(argv[1]) == "make";
  if (!make && argc != 2)
    return std::fprintf(stderr, "open_bench make DIR whole|cut, or open_bench DIR\n"), 2;
  const cairn::Status status =
      make ? cairn::Make(argv[2], std::string(argv[3]) == "cut") : cairn::Measure(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "open_bench: %s\n", status.message().c_str());
  return 2;
}
