// distrib_optim.pt: the state of Megatron's distributed optimizer, put together over its data parallel ranks.
//
// One flat buffer per chunk of the model holds its parameters in reverse, each from a multiple of 64 elements
// of its bucket. Buckets' ends are padded in memory, not in the file, so the file does not depend on DP. A
// tied embedding on several stages has its own bucket; others are cut with --overlap-grad-reduce only, which
// does not matter if all sizes are multiples of 64. Source: megatron-core 0.16.1,
// distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py.
#pragma once

#include "convert/foreign/target_builder.h"
#include "convert/formats/megatron_model/local_model.h"

namespace cairn {

struct BufferTensor {
  const LocalTensor* tensor = nullptr;
  bool shared = false;  // a tied embedding, or its copy as the head, of a pipeline
};
using BufferChunk = std::vector<BufferTensor>;  // as the model registers them

// Adds the file. `grads`: the type of the gradients that the buffers are made for.
void AddDistribOptim(const TrainingTensors& tensors, const std::vector<BufferChunk>& chunks, Dtype grads,
                     const std::string& file, TargetBuilder& builder);

// True if the file does not depend on how a training cuts its buckets.
bool FitsAllBuckets(const std::vector<BufferChunk>& chunks);

}  // namespace cairn
