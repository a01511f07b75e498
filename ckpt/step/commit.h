// Makes a step out of finished shards, or leaves everything as it was.
//
// Order of what becomes durable: shards (synced by their writers), index, manifest, the partial directory's
// entries, the rename that makes it a step, the run directory's entries. Before the rename nothing of it is
// ever read; after it everything is durable. `latest` follows as a hint. FORMAT.md, "Commit".
#pragma once

#include <string>
#include <vector>

#include "ckpt/h5/h5_views.h"
#include "ckpt/step/shard_writer.h"

namespace cairn {

struct StepInfo {
  StepIdentity identity;
  Topology topology;
  nlohmann::json model = nlohmann::json::object();
  nlohmann::json state = nlohmann::json::object();
  nlohmann::json history = nlohmann::json::array();
  std::vector<int64_t> branches = {};  // BranchesOf() (ckpt/run/branch.h); of a copied step the source's
};

// Joins the receipts' pieces under the global `tensors`, checks that every element is covered exactly once.
// Errors: Corrupt naming the hole or overlap; a tensor that `tensors` does not list.
Result<Catalog> MergeReceipts(const std::vector<TensorEntry>& tensors,
                              const std::vector<ShardReceipt>& receipts);

// The files that make shards a step, as bytes: for steps that do not lie in one directory.
struct StepSeal {
  std::string index;
  std::string manifest;
};
// `kept`: what a saver keeps from one seal to the next.
Result<StepSeal> MakeSeal(const StepInfo& info, const std::vector<TensorEntry>& tensors,
                          const std::vector<ShardReceipt>& receipts, H5Views* kept = nullptr);
// The same of a whole catalog. `files`: the catalog's, sealed; `shards`: their directory, relative to the
// step's, where it is not its own.
Result<StepSeal> SealCatalog(const StepInfo& info, const Catalog& catalog, std::vector<ManifestFile> files,
                             const std::string& shards = {}, H5Views* kept = nullptr);
// Index, manifest, and the directory's entries, in this order.
Status WriteSeal(FileSystem& fs, const std::string& directory, const StepSeal& seal);

// Writes index and manifest into `directory` and syncs it. `receipts` are in order of writer.
Status SealStep(FileSystem& fs, const std::string& directory, const StepInfo& info,
                const std::vector<TensorEntry>& tensors, const std::vector<ShardReceipt>& receipts);

// Renames the sealed RUN/step-N.partial-NONCE to RUN/step-N and syncs RUN. A step-N that is there already is
// kept beside it as step-N.superseded-NONCE, the name that the new one takes first, to change places with it.
Status PublishStep(FileSystem& fs, const std::string& run_dir, int64_t step, const std::string& nonce);

// Removes a partial directory after a failure, as far as it goes.
void AbandonPartial(FileSystem& fs, const std::string& directory);

}  // namespace cairn
