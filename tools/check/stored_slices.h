// Where the tensors of another system's checkpoint are stored: in which rank's file, at which bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "convert/foreign/stored_source.h"

namespace cairn {

// Which rank wrote a file, by its name: Megatron and DeepSpeed name the coordinates in the
// topology, DCP the number of the rank.
struct FileRank {
  std::optional<int> tp, pp, ep, dp, rank;
  // Those that the name has: ("tp", 1), ("pp", 2).
  std::vector<std::pair<std::string, int>> Coordinates() const;
};
// `file` is relative to the checkpoint: "iter_0000100/mp_rank_01_002/model_optim_rng.pt" is of tp 1, pp 2, or
// of tp 1, ep 2 in a topology with EP and without PP.
// Empty for other names.
FileRank RankOfFile(const std::string& file, const Topology& topology);
// "tp 1, pp 2", "rank 3", or "-".
std::string ToString(const FileRank& rank);

// A stretch of one file that holds elements of a tensor.
struct StoredSlice {
  Box box;                   // of the tensor: the part that the array has
  const StoredArray* array;  // a tensor as it is stored: fused, transposed, flat
  FlatRange range;           // of the array's row-major order
  bool transposed = false;
  const std::string* file;   // relative to the checkpoint's directory
  uint64_t file_offset = 0;  // of the range's first element, bytes
  uint64_t bytes = 0;        // that are the tensor's
  FileRank rank;
};
// In the order of boxes, then of elements. If several tensors share an array, a slice reaches from the
// tensor's first to its last element, including anything between.
std::vector<StoredSlice> SlicesOf(const StoredCatalog& catalog, const Topology& topology, uint32_t tensor);

}  // namespace cairn
