// Each part of the buffers covers some stretches of each parameter, and each stretch is a box of a tensor of
// the step. Boxes in host memory are loaded in parallel, all at once. Boxes for a GPU are loaded in batches,
// through a buffer; boxes that are cast, one by one.

#include "runtime/saving/load_state.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/flat_range.h"
#include "ckpt/codec/cast.h"

namespace cairn {
namespace {

constexpr uint64_t kWindowElements = 1 << 20;
constexpr uint64_t kGpuBatchBytes = 1 << 30;  // of host memory, or the largest box

bool IsMoment(Role role) { return role == Role::kExpAvg || role == Role::kExpAvgSq; }

struct Stretch {
  Box box;            // of the tensor
  std::byte* target;  // of the part
};

// The stretches of a parameter that a part of this rank's state covers.
std::vector<Stretch> StretchesOf(const StateBuffers::Part& part, const LocalParameter& local) {
  const FlatRange wanted = Overlap(part.covers, {local.flat_begin, local.flat_begin + local.box.Volume()});
  std::vector<Stretch> stretches;
  if (wanted.size() == 0) return stretches;
  const FlatRange in_box{wanted.begin - local.flat_begin, wanted.end - local.flat_begin};
  for (const Segment& segment : Decompose(local.box, in_box))
    stretches.push_back(
        {segment.box, part.data + (wanted.begin + segment.begin - part.covers.begin) * SizeOf(part.dtype)});
  return stretches;
}

Status DoesNotFit(const TensorEntry& entry, const StateBuffers::Part& part, const ParameterSpec& spec,
                  std::string_view hint) {
  return InvalidArgument(
      "tensor {} is {} {} in the checkpoint, but {} {} in this training; check the model's flags{}",
      DisplayName(entry), Name(entry.dtype), ToString(entry.spec.shape), Name(part.dtype),
      ToString(spec.shape), hint);
}

}  // namespace

TensorEntry RngTensor(const Topology& t, int rank, size_t bytes) {
  TensorEntry entry;
  entry.spec.name = fmt::format("rng.tp{}-pp{}-dp{}.rank-{}", t.tp, t.pp, t.dp, rank);
  entry.spec.shape = {bytes};
  entry.role = Role::kRng;
  entry.dtype = Dtype::kU8;
  return entry;
}

bool IsOwnStep(const nlohmann::json& state) {
  return state.is_object() && state.contains("nan_iterations") && state.contains("optimizer_steps");
}

Status StateLoader::LoadParts(bool weights_alone) {
  if (!weights_alone) CAIRN_RETURN_IF_ERROR(CheckStates());
  std::vector<ReadRequest> requests, for_gpu;
  for (const StateBuffers::Part& part : buffers_.parts) {
    if (weights_alone && part.role != Role::kWeight && part.role != Role::kMaster) continue;
    for (const LocalParameter& local : buffers_.layout.parameters) {
      const ParameterSpec& spec = buffers_.specs[local.index];
      CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor,
                             weights_alone ? WeightOf(spec, part) : TensorOf(spec, part));
      for (const auto& [box, target] : StretchesOf(part, local)) {
        if (Entry(tensor).dtype != part.dtype) {
          CAIRN_RETURN_IF_ERROR(LoadAs(tensor, box, part, target));
          continue;
        }
        (part.on_gpu ? for_gpu : requests)
            .push_back({tensor, box, {target, box.Volume() * SizeOf(part.dtype)}});
      }
    }
  }
  CAIRN_RETURN_IF_ERROR(LoadToGpu(for_gpu));
  return step_.Load(requests);
}

// Checks that the trainer's optimizer has every state of the step. It has one step count for all parameters.
Status StateLoader::CheckStates() const {
  for (const TensorEntry& tensor : step_.catalog().tensors) {
    const Role role = tensor.role;
    if (role == Role::kWeight || role == Role::kMaster || role == Role::kRng) continue;
    if (std::ranges::find(buffers_.parts, role, &StateBuffers::Part::role) == buffers_.parts.end())
      return InvalidArgument(
          "{}: this training's optimizer has no {}{}; choose the same --optimizer, or take only the weights "
          "with --finetune",
          DisplayName(tensor), Name(role), role == Role::kStep ? " of each parameter" : "");
  }
  return OkStatus();
}

// The tensor that both the weight and its master are read from.
Result<uint32_t> StateLoader::WeightOf(const ParameterSpec& spec, const StateBuffers::Part& part) const {
  Result<uint32_t> tensor =
      lookup_.Find(spec.name, options_.config.skip_train ? Role::kWeight : Role::kMaster);
  if (!tensor.ok()) tensor = lookup_.Find(spec.name, Role::kWeight);
  if (!tensor.ok()) return InvalidArgument("{}; is its architecture another?", tensor.status().message());
  const TensorEntry& entry = Entry(*tensor);
  if (!(entry.spec.shape == spec.shape) || !CanCast(entry.dtype, part.dtype))
    return DoesNotFit(entry, part, spec, "");
  return tensor;
}

// The tensor that a part is read from. A step of another program may have no weights but fp32 masters
// (universal, ZeRO 3): these give the masters, and rounded the weights.
Result<uint32_t> StateLoader::TensorOf(const ParameterSpec& spec, const StateBuffers::Part& part) const {
  Result<uint32_t> tensor = lookup_.Find(spec.name, part.role);
  const Result<uint32_t> weight = lookup_.Find(spec.name, Role::kWeight);
  const bool masters_alone = !IsOwnStep(step_.manifest().state) && weight.ok() &&
                             Entry(*weight).dtype == Dtype::kF32 &&
                             !lookup_.Find(spec.name, Role::kMaster).ok();
  if (masters_alone && part.role == Role::kMaster) tensor = weight;
  if (!tensor.ok())
    return InvalidArgument(
        "{}; was it trained with another precision or architecture? From a step without an optimizer's "
        "state, start with --finetune",
        tensor.status().message());
  const TensorEntry& entry = Entry(*tensor);
  const bool rounds = ((masters_alone && part.role == Role::kWeight) || IsMoment(part.role)) &&
                      CanCast(entry.dtype, part.dtype);
  const bool same_shape = entry.spec.shape == spec.shape;
  if (!same_shape || (entry.dtype != part.dtype && !rounds))
    return DoesNotFit(entry, part, spec, same_shape ? ", or take only its weights with --finetune" : "");
  return tensor;
}

// Loads elements of the tensor in the type of the part, a window at a time: a rank has no memory for whole
// tensors of a large model.
Status StateLoader::LoadAs(uint32_t tensor, const Box& box, const StateBuffers::Part& part,
                           std::byte* target) {
  const Dtype from = Entry(tensor).dtype, to = part.dtype;
  std::vector<std::byte> stored, cast;
  for (uint64_t begin = 0; begin < box.Volume(); begin += kWindowElements)
    for (const Segment& segment : Decompose(box, {begin, std::min(begin + kWindowElements, box.Volume())})) {
      stored.resize(segment.box.Volume() * SizeOf(from));
      cast.resize(segment.box.Volume() * SizeOf(to));
      CAIRN_RETURN_IF_ERROR(step_.ReadBox(tensor, segment.box, stored));
      if (Cast(from, stored, to, cast, OnOverflow::kInfinity).overflowed > 0)
        return InvalidArgument("tensor {} has values beyond the range of {}; train in bf16 or fp32",
                               DisplayName(Entry(tensor)), Name(to));
      std::byte* const there = target + (begin + segment.begin) * SizeOf(to);
      part.on_gpu ? options_.device_copy(there, cast.data(), cast.size(), /*to_device=*/true)
                  : (void)std::memcpy(there, cast.data(), cast.size());
    }
  return OkStatus();
}

Status StateLoader::LoadToGpu(std::span<const ReadRequest> requests) {
  std::vector<std::byte> host;
  while (!requests.empty()) {
    size_t count = 0;
    uint64_t bytes = 0;
    do bytes += requests[count++].out.size();
    while (count < requests.size() && bytes + requests[count].out.size() <= kGpuBatchBytes);
    if (host.size() < bytes) host.resize(bytes);
    std::vector<ReadRequest> batch(requests.begin(), requests.begin() + count);
    bytes = 0;
    for (ReadRequest& request : batch) {
      request.out = std::span(host).subspan(bytes, request.out.size());
      bytes += request.out.size();
    }
    CAIRN_RETURN_IF_ERROR(step_.Load(batch));
    for (size_t i = 0; i < count; ++i)
      options_.device_copy(requests[i].out.data(), batch[i].out.data(), batch[i].out.size(),
                           /*to_device=*/true);
    requests = requests.subspan(count);
  }
  return OkStatus();
}

void StateLoader::LoadRng(int rank) {
  const TensorEntry wanted = RngTensor(options_.topology, rank, 0);
  const Result<uint32_t> tensor = lookup_.Find(wanted.spec.name, Role::kRng);
  buffers_.rng_state.clear();
  if (!tensor.ok()) return;
  buffers_.rng_state.resize(Entry(*tensor).bytes());
  const auto out = std::as_writable_bytes(std::span(buffers_.rng_state));
  if (!step_.ReadBox(*tensor, Box::Whole(Entry(*tensor).spec.shape), out).ok()) buffers_.rng_state.clear();
}

}  // namespace cairn
