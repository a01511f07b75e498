// The pieces of every shard of a native step, under any topology.
//
// The same as the trainer's checkpointer writes under that topology: rank R writes shard R with the pieces
// that ckpt/model/placement.h gives it, of every role, and random state number i of the catalog lies in shard
// i modulo the number of ranks (its own rank's, if the topology stays the same). Pure.
#pragma once

#include <vector>

#include "ckpt/model/catalog.h"
#include "ckpt/model/model.h"
#include "ckpt/model/placement.h"

namespace cairn {

// Layers of each of the topology's pp * virtual_stages chunks if the embedding counts as a layer of the
// first one, the loss of the last one, or both, as Megatron's --account-for-*-in-pipeline-split do.
// Errors: InvalidArgument if they do not divide.
Result<std::vector<int>> LayersBesideEnds(int layers, const Topology& topology, bool embedding, bool loss);

// Errors: InvalidArgument if the topology has sizes for experts, but cuts no tensor with them.
Status CheckExpertsDivide(const std::vector<TensorEntry>& tensors, const Topology& topology);

struct PlannedShard {
  int rank = 0;
  std::vector<Piece> pieces;  // tensor, box and range, in the order of the tensors
};

class StepPlan {
 public:
  // Errors: InvalidArgument if the topology does not fit the model, naming sizes and tensor, and those of
  // CheckPaths; Corrupt if roles of a parameter disagree on its shape.
  static Result<StepPlan> Make(const std::vector<TensorEntry>& tensors, const Model& model,
                               const Topology& topology);

  const Topology& topology() const { return topology_; }
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  // The shards of one pipeline stage, by rank. Planned by stage: memory does not grow with PP.
  std::vector<PlannedShard> Stage(int pp_rank) const;
  // The catalog of the step, but for the places and digests of its bytes: enough for H5Views.
  Catalog Layout() const;

 private:
  std::vector<TensorEntry> tensors_;
  Topology topology_;
  std::vector<ParameterSpec> specs_;
  std::vector<std::vector<uint32_t>> roles_;  // of each spec: the tensors of its roles
  std::vector<uint32_t> opaque_;
};

}  // namespace cairn
