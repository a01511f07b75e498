// Which ranks of a training hold a piece of its step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/model/catalog.h"
#include "ckpt/model/topology.h"

namespace cairn {

class PieceRanks {
 public:
  // `placed`: placement.h has given the topology's ranks their slices, as in every step but that of a
  // training with its own meshes (cairn.torch).
  PieceRanks(const StepCatalog& catalog, const Topology& topology, bool placed);

  // Those whose slice has elements of the piece, ascending; the rank that wrote it if its tensor is not
  // placed. Empty if no rank of the topology did.
  std::vector<int> Of(const Piece& piece) const;

 private:
  struct HeldBox {
    Box box;
    std::vector<int> ranks;
  };
  const StepCatalog& catalog_;
  int world_;
  std::map<std::string, std::vector<HeldBox>> held_;  // of each placed parameter
};

// "0-3, 8"; "-" for none.
std::string RankList(const std::vector<int>& ranks);

}  // namespace cairn
