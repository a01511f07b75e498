// The part of an index that costs: a virtual HDF5 dataset for each tensor, over the shards' datasets. Among
// very many tensors, those that are one dataset of a shard are links to it.
//
// They follow from the layout alone, so that saves of one layout make them once (0.1 ms a tensor), and each
// index is a copy of them with what is that step's own: attributes, the catalog (h5_index.h), and the views
// of opaque values, whose sizes change from step to step.
#pragma once

#include <optional>
#include <string>

#include "ckpt/h5/h5_image.h"
#include "ckpt/model/catalog.h"

namespace cairn {

class H5Views {
 public:
  // An HDF5 file of the views of all tensors that are not opaque: the one made last, if that had the same
  // layout. It stays until the next call. `shards`: the shards' directory, relative to the step's. Errors:
  // IoError with HDF5's own message.
  Result<const H5Layout*> Of(const Catalog& catalog, const std::string& shards);
  // How often they were not those made last.
  int made() const { return made_; }

 private:
  int made_ = 0;
  std::string layout_;
  std::optional<H5Layout> image_;  // of that layout
};

// Into the hid_t of a file, those of the opaque ones.
Status AddOpaqueViews(int64_t file, const Catalog& catalog, const std::string& shards);

}  // namespace cairn
