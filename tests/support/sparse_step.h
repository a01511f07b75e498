// A committed step whose shards have no block: sizes and places of any model without its data.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "ckpt/step/seal.h"
#include "convert/stream/step_plan.h"
#include "tests/support/make_step.h"

namespace cairn {

// Writes `run_dir`/step-N of the recipe, and returns the bytes of its shards. Digests are zeros.
inline Result<uint64_t> WriteSparseStep(FileSystem& fs, const std::string& run_dir,
                                        const StepRecipe& recipe) {
  CAIRN_ASSIGN_OR_RETURN(const StepPlan plan,
                         StepPlan::Make(TensorsOf(recipe), recipe.model, recipe.topology));
  const std::string step = JoinPath(run_dir, StepDirName(recipe.step));
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, step));
  Catalog catalog;
  catalog.tensors = plan.tensors();
  std::vector<ManifestFile> files;
  uint64_t bytes = 0;
  for (int stage = 0; stage < recipe.topology.pp; ++stage)
    for (const PlannedShard& shard : plan.Stage(stage)) {
      uint64_t end = kPageBytes;
      for (Piece piece : shard.pieces) {
        piece.file = static_cast<uint32_t>(files.size());
        piece.file_offset = end;
        piece.stored_bytes = piece.range.size() * SizeOf(catalog.tensors[piece.tensor].dtype);
        piece.chunks.resize((piece.stored_bytes + kChunkBytes - 1) / kChunkBytes);
        end = PageUp(end + piece.stored_bytes);
        catalog.pieces.push_back(std::move(piece));
      }
      files.push_back({ShardName(shard.rank), end, {}});
      catalog.files.push_back(files.back().name);
      const std::string path = JoinPath(step, files.back().name);
      std::ofstream(path).close();
      std::filesystem::resize_file(path, end);
      bytes += end;
    }
  catalog.SortPieces();
  CAIRN_ASSIGN_OR_RETURN(
      const StepSeal seal,
      SealCatalog({{recipe.run, recipe.step}, recipe.topology, recipe.model, recipe.state}, catalog, files));
  CAIRN_RETURN_IF_ERROR(WriteSeal(fs, step, seal));
  return bytes;
}

}  // namespace cairn
