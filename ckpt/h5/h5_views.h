// The expensive part of an index: a virtual HDF5 dataset for each tensor, over the shards' datasets. If there
// are very many tensors, those that are one dataset of a shard are links to it.
//
// They depend only on the layout, so saves of one layout make them once (0.1 ms per tensor). Each index is a
// copy of them plus what belongs to that step: attributes, the catalog (h5_index.h), and the views of opaque
// values, whose sizes change from step to step.
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
  // How often they had to be made again.
  int made() const { return made_; }

 private:
  int made_ = 0;
  std::string layout_;
  std::optional<H5Layout> image_;  // of that layout
};

// Adds the views of opaque tensors to the hid_t of a file.
Status AddOpaqueViews(int64_t file, const Catalog& catalog, const std::string& shards);

}  // namespace cairn
