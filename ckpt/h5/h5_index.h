// index.h5: every tensor of a step whole, as HDF5 virtual datasets over the shards, with model and training
// state as attributes, and the catalog. For people and other programs; our own loader reads only the catalog
// and the shards.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ckpt/base/digest.h"
#include "ckpt/h5/h5_views.h"

namespace cairn {

struct H5Index {
  std::string bytes;  // of the file
  uint64_t catalog_offset = 0, catalog_bytes = 0;
  Digest catalog_digest;
};

// `model` and `state` are flat JSON objects; each number, text and bool becomes an attribute of /model and
// /state. `shards`: the shards' directory, relative to the step's; empty: its own. `kept`: what the next
// index of the same layout need not make again. Errors: IoError with HDF5's own message.
Result<H5Index> BuildIndex(const Catalog& catalog, const nlohmann::json& model, const nlohmann::json& state,
                           const std::string& shards = {}, H5Views* kept = nullptr);

}  // namespace cairn
