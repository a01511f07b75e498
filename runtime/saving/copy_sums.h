// Sums of the values that a rank holds and other ranks hold, too, which they compare in a save (copies.h):
// all weights of data parallel replicas, and what tensor parallelism does not cut.
#pragma once

#include <string>
#include <vector>

#include "runtime/saving/checkpoint_hooks.h"

namespace cairn {

class CopySums {
 public:
  CopySums() = default;
  // Values on a GPU are left out: a training has one GPU.
  CopySums(const StateBuffers& buffers, const Topology& topology, int rank);
  // The sums of now, as JSON. `bases`: the memory of each part of the buffers.
  std::string Take(const std::vector<const std::byte*>& bases) const;

 private:
  struct Values {
    std::string group;  // of the ranks that hold them
    std::string name;   // as in copies.h
    size_t part = 0;    // of the buffers
    uint64_t offset = 0;
    uint64_t rows = 0, columns = 0;
    size_t element_bytes = 0;
  };

  void Add(const StateBuffers& buffers, size_t part, const LocalParameter& parameter,
           const Topology& topology, int rank);

  std::vector<Values> values_;
};

}  // namespace cairn
