// The index and the manifest that turn shards into a step, built in memory from the shards' receipts.
#pragma once

#include <string>
#include <vector>

#include "ckpt/h5/h5_views.h"
#include "ckpt/step/shard_writer.h"

namespace cairn {

struct StepInfo {
  StepIdentity identity;
  Topology topology;
  Model model = {};
  nlohmann::json state = nlohmann::json::object();
  nlohmann::json history = nlohmann::json::array();
  Descent descent = {};  // NextDescent() (ckpt/run/branch.h); a copied step has its source's

  // The facts of a step that is made from another one, for a topology.
  static StepInfo Of(const Manifest& source, const Topology& topology);
};

struct StepSeal {
  std::string index;
  std::string manifest;
};
// Joins the receipts' pieces under the global `tensors`, and checks that every element is covered exactly
// once. `receipts` are in order of writer. `kept`: cache of a saver, from one seal to the next. Errors:
// Corrupt naming the hole or overlap; NotFound for a tensor that `tensors` does not list.
Result<StepSeal> MakeSeal(const StepInfo& info, const std::vector<TensorEntry>& tensors,
                          const std::vector<ShardReceipt>& receipts, H5Views* kept = nullptr);
// The same from a whole catalog. `files`: the catalog's, with sizes and digests; `shards`: their directory,
// relative to the step's, if it is another one.
Result<StepSeal> SealCatalog(const StepInfo& info, const Catalog& catalog, std::vector<ManifestFile> files,
                             const std::string& shards = {}, H5Views* kept = nullptr);
// Writes index and manifest, in this order. The directory's entries are not synced yet.
Status WriteSeal(FileSystem& fs, const std::string& directory, const StepSeal& seal);

}  // namespace cairn
