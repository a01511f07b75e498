#include "convert/verbs/virtual_step.h"

#include <algorithm>
#include <filesystem>

#include "ckpt/model/layout.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/step_hold.h"
#include "ckpt/run/tokenizer_files.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

// Follows symbolic links: the relative path from one directory to the other must be right for the kernel.
Result<stdfs::path> Canonical(const std::string& path) {
  std::error_code error;
  const stdfs::path canonical = stdfs::canonical(path, error);
  if (error) return IoError("{}: {}", path, error.message());
  return canonical;
}

Catalog CatalogOf(const StepReader& source, const StepPlan& plan) {
  Catalog catalog;
  catalog.tensors = plan.tensors();
  catalog.files = source.catalog().files;
  catalog.pieces.reserve(source.catalog().pieces.size());
  for (const Piece& piece : source.catalog().pieces) catalog.pieces.push_back(piece);
  return catalog;
}

std::vector<ManifestFile> ShardsOf(const StepReader& source) {
  std::vector<ManifestFile> shards = source.manifest().files;
  const std::vector<std::string>& names = source.catalog().files;
  std::erase_if(shards, [&](const ManifestFile& file) { return std::ranges::count(names, file.name) == 0; });
  return shards;
}

Result<StepSeal> SealOf(const StepReader& source, const StepPlan& plan, const std::string& shards) {
  const Catalog catalog = CatalogOf(source, plan);
  CAIRN_RETURN_IF_ERROR(CheckCoverage(catalog).WithContext(source.directory()));
  return SealCatalog(StepInfo::Of(source.manifest(), plan.topology()), catalog, ShardsOf(source), shards);
}

}  // namespace

Result<uint64_t> EstimateVirtualBytes(const StepReader& source, const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const StepPlan plan, PlanShards(source, options));
  CAIRN_ASSIGN_OR_RETURN(const StepSeal seal, SealOf(source, plan, source.directory()));
  return seal.index.size() + seal.manifest.size();
}

Result<VirtualStep> ReshapeVirtually(FileSystem& fs, const StepReader& source, const std::string& run_dir,
                                     const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const StepPlan plan, PlanShards(source, options));
  const int64_t step = source.manifest().step;
  CAIRN_ASSIGN_OR_RETURN(Committer committer,
                         Committer::Create(fs, {.run_dir = run_dir,
                                                .commit = BranchedStep::Of(source.manifest()),
                                                .beside = NamesInStep(options.writer.beside)}));
  CAIRN_ASSIGN_OR_RETURN(const stdfs::path shards, Canonical(source.DirectoryOf(ShardName(0))));
  CAIRN_ASSIGN_OR_RETURN(const stdfs::path from, Canonical(committer.partial()));
  CAIRN_ASSIGN_OR_RETURN(StepSeal seal, SealOf(source, plan, shards.lexically_relative(from).string()));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BesideFile> beside, ReadCopies(options.writer.beside));
  const std::string path = (from.parent_path() / StepDirName(step)).string();
  const Status held = AnnounceHold(fs, shards.string(), path, committer.partial());
  // After the hold: shards that are read back now stay.
  CAIRN_RETURN_IF_ERROR(committer.Commit(seal, {.beside = beside, .read_back = true}));
  RenewHold(fs, committer.step_dir(), DecodeManifest(seal.manifest).value());
  return VirtualStep{.path = committer.step_dir(),
                     .shards = shards.string(),
                     .bytes_written = seal.index.size() + seal.manifest.size(),
                     .held = held};
}

}  // namespace cairn
