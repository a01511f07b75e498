// The part of a step that one node keeps of its run (ckpt/job/local_place.h): which of the step's shards are
// in the directory, whether they are good, and what other nodes need of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/manifest.h"
#include "ckpt/step/verify.h"

namespace cairn {

struct NodePart {
  // Shards under one parity, of which some are here.
  struct Group {
    std::vector<std::string> shards;
    int parity = 0;  // as many shards may be lost

    std::string Text() const;  // "xor:4", "rs:4,2"
  };
  std::optional<Manifest> manifest;
  std::vector<std::string> here;       // of the ranks' shards
  std::vector<std::string> elsewhere;  // those that other nodes should have
  std::vector<Group> groups;

  // "any 1 of shard-00000.h5, shard-00001.h5", for each group; empty without parity.
  std::string RebuiltFrom() const;
};

// What is in the directory of a step. `report` gets what is wrong here; a shard that is neither here nor has
// parity here counts as one of another node's. `hash`: reads every byte, else only sizes and the parity's
// headers. `progress` gets the bytes done. A training may remove the step meanwhile, and fill the memory of
// its files again: then the trouble of the report is NotFound.
NodePart CheckNodePart(FileSystem& fs, const std::string& directory, bool hash, VerifyReport& report,
                       const std::function<void(uint64_t)>& progress = {});

}  // namespace cairn
