#include "convert/formats/megatron/megatron_buffer.h"

#include <algorithm>

#include "convert/formats/megatron_model/megatron_optimizer.h"

namespace cairn {
namespace {

struct BufferLayout {
  std::vector<uint64_t> begins;  // of each tensor of the chunk
  uint64_t elements = 0;
};

BufferLayout LayoutOf(const BufferChunk& chunk) {
  BufferLayout layout{std::vector<uint64_t>(chunk.size()), 0};
  uint64_t bucket = 0,
           end = 0;  // the begin of the bucket in the file, and its end so far within itself
  const auto close = [&](uint64_t at) { bucket += at, end = 0; };
  for (size_t i = chunk.size(); i-- > 0;) {
    uint64_t begin = AlignedInBucket(end);
    if (chunk[i].shared && end > 0) close(std::exchange(begin, 0));
    layout.begins[i] = bucket + begin;
    end = begin + chunk[i].tensor->shape.Volume();
    if (chunk[i].shared) close(end);
  }
  layout.elements = bucket + end;
  return layout;
}

void EmitBuffer(const TrainingTensors& tensors, const BufferChunk& chunk, uint32_t zip,
                TargetBuilder& builder) {
  const BufferLayout layout = LayoutOf(chunk);
  PickleEmitter& p = builder.pickle(zip);
  p.BeginDict();
  for (const Role& role : kBufferRoles) {
    p.Text(kBufferPlaces.NameOf(role));
    const uint32_t storage = builder.EmitTensor(zip, Dtype::kF32, {layout.elements});
    for (size_t i = 0; i < chunk.size(); ++i) {
      const Dims& shape = chunk[i].tensor->shape;
      const uint32_t array =
          builder.AddArray({chunk[i].tensor->name,
                            Dtype::kF32,
                            shape,
                            {{{0, shape.Volume()}, storage, layout.begins[i] * sizeof(float)}}});
      AddParts(tensors, *chunk[i].tensor, role, array, builder.target);
    }
  }
  p.Entry("numel_unpadded", layout.elements);
  p.EndDict();
}

}  // namespace

void AddDistribOptim(const TrainingTensors& tensors, const std::vector<BufferChunk>& chunks, Dtype grads,
                     const std::string& file, TargetBuilder& builder) {
  const uint32_t zip = builder.BeginTorchFile(file);
  PickleEmitter& p = builder.pickle(zip);
  p.BeginDict();
  p.Entry("buckets_coalesced", true);
  for (size_t c = 0; c < chunks.size(); ++c) {
    p.Int(static_cast<int64_t>(c));
    p.BeginDict();
    p.BeginTuple();
    p.TorchDtype(tensors.weight_type());
    p.TorchDtype(grads);
    p.EndTuple();
    EmitBuffer(tensors, chunks[c], zip, builder);
    p.EndDict();
  }
  p.EndDict();
}

bool FitsAllBuckets(const std::vector<BufferChunk>& chunks) {
  return std::ranges::all_of(chunks, [](const BufferChunk& chunk) {
    return std::ranges::all_of(chunk, [](const BufferTensor& held) {
      return held.shared || held.tensor->shape.Volume() % kBucketAlignment == 0;
    });
  });
}

}  // namespace cairn
