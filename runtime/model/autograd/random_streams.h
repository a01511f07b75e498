// Two streams of random numbers per rank, as Megatron's: one that the tensor parallel ranks share (dropout of
// replicated activations, which must agree) and one private to this rank (dropout inside a tensor parallel
// region).
//
// libtorch's dropout draws from the device's default generator, so the shared stream is that generator's
// state, and the other one is swapped in for the length of a ParallelRegion. Data parallel replicas and
// stages have separate streams.
#pragma once

#include <ATen/Tensor.h>
#include <ATen/core/Generator.h>

#include <string>

#include "ckpt/model/topology.h"

namespace cairn {

class RandomStreams {
 public:
  RandomStreams(at::Device device, int64_t seed, const Topology& topology, int rank);

  // Starts both streams again, from `seed`, the place in the mesh and `iteration`: for a resume on another
  // topology.
  void Reseed(int64_t iteration);

  // While one lives, random numbers come from this rank's own stream. Not to be nested.
  class ParallelRegion {
   public:
    explicit ParallelRegion(RandomStreams& streams) : streams_(streams) { streams_.Swap(); }
    ~ParallelRegion() { streams_.Swap(); }
    ParallelRegion(const ParallelRegion&) = delete;
    ParallelRegion& operator=(const ParallelRegion&) = delete;

   private:
    RandomStreams& streams_;
  };

  // Both states, outside of any region: bytes that only LoadState of the same device type understands.
  std::string SaveState() const;
  // Errors: Corrupt when the bytes are not SaveState's.
  Status LoadState(const std::string& state);

 private:
  void Swap();

  at::Generator generator_;  // the default one; holds the shared stream
  int64_t seed_;
  uint64_t tp_, dp_, pp_;  // the rank's place in the mesh
  at::Tensor own_state_;   // of the stream that is swapped out
};

}  // namespace cairn
