// ZeRO's stages (Rajbhandari et al. 2020): which rank has which weights and gradients at which time.
//
// Stage 0 and 1: each rank has all; gradients are reduced in buckets as the backward of the last micro-batch
// completes them, in parallel with the backward of earlier layers. Stage 2: a gradient lives only while its
// unit runs backward, and is added to the partition of the rank that owns it, for each micro-batch. Stage 3:
// weights too; a unit's are gathered before it runs and dropped after it. Both the same for each tile of a
// weight that is used in tiles. Partitions are those of ckpt/model/placement.h: flat, so a checkpoint is the
// same under every stage; a unit lies on one or two ranks, and is broadcast by them.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "runtime/comm/parallel_dims.h"
#include "runtime/config/train_config.h"
#include "runtime/model/autograd/parameter_unit.h"
#include "runtime/model/parameters/flat_parameters.h"

namespace cairn {

// The parts of its buffers that a rank keeps from step to step under `config`; all weights alone with
// --skip-train.
FlatParameters::Kept KeptUnder(const TrainConfig& config, const ParallelDims& dims, const RankLayout& layout);

// This rank's parameters, zeros. Requires a validated config.
FlatParameters MakeParameters(const TrainConfig& config, const ParallelDims& dims, at::Device device);

class ZeroUnits final : public UnitHooks {
 public:
  // All must outlive the units.
  ZeroUnits(const TrainConfig& config, const ParallelDims& dims, FlatParameters& parameters);

  // To be called once the model has made its views of the parameters.
  void Plan();

  // Around the gradients of a step: between them, this many micro-batches run forward and backward.
  void BeginStep(int64_t micro_batches);
  void EndStep();
  // The kept weights are new: those that were gathered before are stale.
  void WeightsChanged();
  // Each rank has updated its partition: if all keep all weights, they get the others'.
  void ShareUpdate();

  void BeforeForward(int unit) override;
  void AfterForward(int unit) override;
  void BeforeBackward(int unit) override;
  void AfterBackward(int unit) override;
  void BeforeTile(size_t tile, TileUse use) override;
  void AfterTile(size_t tile, TileUse use) override;

 private:
  // Parameters that follow each other in the buffer and come and go together.
  struct Run {
    FlatRange range;
    bool tile = false;      // comes and goes by itself
    bool persists = false;  // small: stays from its first use until the weights change
    bool tied = false;      // to a copy on another stage: its gradient is complete only with that one's
    int uses = 0;           // by units of this rank, in one micro-batch
    std::vector<size_t> views;
    int users = 0;        // that need the weights now
    int64_t missing = 0;  // backwards that are still to come in this step
    at::Tensor weights;   // gathered
    at::Tensor grads;     // of the micro-batch under way
    std::vector<Work> arriving;
  };
  struct Leaving {  // gradients in flight to their owners
    at::Tensor window;
    FlatRange range;
    std::vector<Work> work;
  };

  void Gather(Run& run);
  void Await(Run& run);
  void Drop(Run& run);
  void Place(const Run& run);
  void Prefetch(int unit, bool forward);
  void PrefetchTileBehind(size_t tile);
  bool UsedAgainSoon(int unit) const;
  uint64_t SizeOfUnit(int unit) const;
  void OpenGrads(Run& run) const;
  void SendOff(Run& run);
  void Settle(uint64_t keep);
  void NoteComplete(FlatRange range);
  void ReduceReady();
  std::vector<Work> ReduceToOwners(const at::Tensor& values, FlatRange range);

  // The parts of `range` by their owners.
  struct OwnedPart {
    int owner;
    FlatRange range;
  };
  std::vector<OwnedPart> PartsOf(FlatRange range) const;

  const ParallelDims& dims_;
  FlatParameters& parameters_;
  const bool shards_weights_;
  const bool shards_grads_;
  const uint64_t bucket_;
  const uint64_t persistence_;
  const uint64_t prefetch_;
  const uint64_t max_live_;
  const uint64_t max_reuse_;
  std::vector<Run> runs_;
  std::map<int, std::vector<size_t>> units_;  // runs of each, in the order of use
  std::map<size_t, size_t> tiles_;            // run of each, by its view
  std::map<int, uint64_t> tiled_;             // elements of each unit
  uint64_t live_ = 0;                         // gathered elements
  std::vector<Leaving> leaving_;              // oldest first
  uint64_t leaving_elements_ = 0;
  FlatRange ready_{0, 0};  // complete gradients that no reduction has yet (stages 0 and 1)
};

}  // namespace cairn
