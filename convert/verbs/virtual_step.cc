#include "convert/verbs/virtual_step.h"

#include <algorithm>
#include <filesystem>

#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/step_hold.h"
#include "ckpt/run/tokenizer_files.h"
#include "ckpt/step/commit.h"
#include "ckpt/step/partial_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

// Symbolic links are followed, so that the way from one directory to the other is what the kernel takes.
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
  const Manifest& manifest = source.manifest();
  const Catalog catalog = CatalogOf(source, plan);
  CAIRN_RETURN_IF_ERROR(CheckCoverage(catalog).WithContext(source.directory()));
  const StepInfo info{{manifest.run, manifest.step},
                      plan.topology(),
                      manifest.model,
                      manifest.state,
                      manifest.history,
                      manifest.branches};
  return SealCatalog(info, catalog, ShardsOf(source), shards);
}

}  // namespace

Result<uint64_t> EstimateVirtualBytes(const StepReader& source, const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const StepPlan plan, PlanReshape(source, options));
  CAIRN_ASSIGN_OR_RETURN(const StepSeal seal, SealOf(source, plan, source.directory()));
  return seal.index.size() + seal.manifest.size();
}

Result<VirtualResult> ReshapeVirtually(FileSystem& fs, const StepReader& source, const std::string& run_dir,
                                       const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const StepPlan plan, PlanReshape(source, options));
  const int64_t step = source.manifest().step;
  VirtualResult result{.directory = JoinPath(run_dir, StepDirName(step)), .shards = {}, .held = {}};
  if (fs.Stat(result.directory).ok())
    return AlreadyExists("{} is there already and is never overwritten; choose another directory",
                         result.directory);
  const std::string nonce = NewNonce();
  CAIRN_ASSIGN_OR_RETURN(PartialDir partial,
                         PartialDir::Make(fs, JoinPath(run_dir, PartialDirName(step, nonce))));
  CAIRN_ASSIGN_OR_RETURN(const RunLock lock, RunLock::Take(run_dir));
  CAIRN_ASSIGN_OR_RETURN(const stdfs::path shards, Canonical(source.DirectoryOf(ShardName(0))));
  CAIRN_ASSIGN_OR_RETURN(const stdfs::path from, Canonical(partial.path()));
  CAIRN_ASSIGN_OR_RETURN(StepSeal seal, SealOf(source, plan, shards.lexically_relative(from).string()));
  CAIRN_RETURN_IF_ERROR(CopyBeside(fs, partial.path(), options.writer.beside, seal));
  CAIRN_RETURN_IF_ERROR(WriteSeal(fs, partial.path(), seal));
  result.held = HoldStep(fs, shards.string(), (from.parent_path() / StepDirName(step)).string());
  // After the hold: what is there now stays.
  CAIRN_RETURN_IF_ERROR(StepReader::Open(fs, partial.path()).status());
  CAIRN_RETURN_IF_ERROR(PublishStep(fs, run_dir, step, nonce));
  partial.Keep();
  result.shards = shards.string();
  result.bytes_written = seal.index.size() + seal.manifest.size();
  return result;
}

}  // namespace cairn
