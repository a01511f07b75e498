// ForEachTensor() goes depth first with a stack of frames, without recursion. Values may be shared or hold
// themselves, and a tensor that is there twice must be visited twice, so a set of visited values would be
// wrong. Instead every visit is paid from one budget, and depth and length of paths are bounded. An object
// made by a call that the machine does not know is refused if elements are among its arguments: the walk
// would pass over them.

#include "convert/torch/tensor_walk.h"

#include <algorithm>
#include <vector>

namespace cairn {
namespace {

constexpr size_t kMaxDepth = 100;
constexpr size_t kMaxPathBytes = 1024;
constexpr size_t kMaxKeyBytes = 256;  // of a key that is not text
// The most that a walk may cost if values are shared, in visits of plain values.
constexpr uint64_t kMaxCost = 1 << 22;
constexpr uint64_t kContainerCost = 4, kTensorCost = 16;

// Dict-like parts of a value, then sequences: what a path can lead into.
struct Frame {
  const PyValue* value;
  size_t next = 0;  // of its items
  size_t path = 0;  // length of the path to it
};

bool LeadsOn(const PyValue& value) {
  return value.is(PyKind::kTensor) || value.is(PyKind::kList) || value.is(PyKind::kTuple) ||
         value.is(PyKind::kDict) || value.is(PyKind::kObject) || value.is(PyKind::kStorage);
}

// True if elements of a tensor or an array are among the arguments of a call that the machine does not know.
// No walk visits those.
bool HidesElements(const PyValue& value, size_t depth, uint64_t& left) {
  if (value.is(PyKind::kTensor) || value.is(PyKind::kStorage)) return true;
  if (depth == 0 || left == 0) return false;
  --left;
  return std::ranges::any_of(value.items,
                             [&](const PyValue* item) { return HidesElements(*item, depth - 1, left); });
}

bool IsNumpyArray(const PyValue& value) {
  return value.is(PyKind::kObject) && value.module.starts_with("numpy") && value.text == "_reconstruct";
}

constexpr size_t kMaxHidingDepth = 8;
constexpr uint64_t kMaxHidingCost = 4096;

// Errors: NotSupported if what the walk passes over has elements.
Status CheckNothingHidden(const PyValue& value, const std::string& path) {
  uint64_t left = kMaxHidingCost;
  const bool call = value.is(PyKind::kObject) && HidesElements(value, kMaxHidingDepth, left);
  if (!call && !value.is(PyKind::kStorage) && !IsNumpyArray(value)) return OkStatus();
  const auto is_dtensor = [](const PyValue* item) {
    return item->is(PyKind::kGlobal) && item->text == "DTensor";
  };
  if (std::ranges::any_of(value.items, is_dtensor))
    return NotSupported(
        "{:.80} is a DTensor, and this file has one rank's part of it; save the whole with "
        "torch.distributed.checkpoint, or its .full_tensor()",
        path);
  return NotSupported(
      "{:.80}: {} holds elements that Cairn does not understand (sparse, quantized, nested, conjugate or "
      "negative "
      "tensors, numpy arrays); save it as a plain tensor, or leave it out",
      path.empty() ? "its root" : path, value.is(PyKind::kStorage) ? "a bare storage" : value.ClassName());
}

}  // namespace

std::string KeyText(const PyValue& key) {
  if (key.is(PyKind::kStr)) return std::string(key.text);
  if (key.is(PyKind::kInt)) return std::to_string(key.integer);
  if (key.is(PyKind::kGlobal)) return key.ClassName().substr(0, kMaxKeyBytes);
  if (!key.is(PyKind::kTuple)) return "?";
  std::string text;  // (torch.bfloat16, torch.float32)
  for (const PyValue* item : key.items) {
    const bool plain = !item->is(PyKind::kTuple) && item->text.size() <= kMaxKeyBytes;
    text += (text.empty() ? "" : ",") + (plain ? KeyText(*item) : "?");
    if (text.size() > kMaxKeyBytes) break;
  }
  return "(" + text + ")";
}

TensorRuns RunsOf(const TensorRef& tensor) {
  TensorRuns runs{tensor.shape.rank(), 1, 1};
  while (runs.outer > 0 &&
         (tensor.shape[runs.outer - 1] == 1 || tensor.stride[runs.outer - 1] == runs.elements))
    runs.elements *= tensor.shape[--runs.outer];
  for (int i = 0; i < runs.outer; ++i)
    if (__builtin_mul_overflow(runs.count, tensor.shape[i], &runs.count)) runs.count = UINT64_MAX;
  return runs;
}

void ForEachTensorRun(const TensorRef& tensor, const std::function<void(uint64_t element)>& visit) {
  const TensorRuns runs = RunsOf(tensor);
  Dims at = Dims::Filled(runs.outer, 0);
  for (uint64_t run = 0; run < runs.count; ++run) {
    uint64_t element = tensor.offset;
    for (int i = 0; i < runs.outer; ++i) element += at[i] * tensor.stride[i];
    visit(element);
    for (int i = runs.outer - 1; i >= 0 && ++at[i] == tensor.shape[i]; --i) at[i] = 0;
  }
}

Status ForEachTensor(const PyValue& root,
                     const std::function<Status(const std::string&, const TensorRef&)>& visit) {
  std::string path;
  std::vector<Frame> frames;
  uint64_t left = kMaxCost;
  const auto charge = [&](uint64_t cost) {
    if (cost > left || frames.size() > kMaxDepth || path.size() > kMaxPathBytes)
      return Corrupt("its object is nested without end at {:.80}", path);
    left -= cost;
    return OkStatus();
  };
  const auto enter = [&](const PyValue* value) -> Status {
    if (value->is(PyKind::kTensor)) {
      const TensorRef& tensor = *value->tensor;
      // A view that is scattered takes memory for each stretch; one that is too much so is the visitor's to
      // refuse.
      CAIRN_RETURN_IF_ERROR(charge(kTensorCost + std::min(RunsOf(tensor).count, kMaxCost / 4)));
      return visit(path, tensor);
    }
    CAIRN_RETURN_IF_ERROR(charge(kContainerCost));
    CAIRN_RETURN_IF_ERROR(CheckNothingHidden(*value, path));
    frames.push_back({value, 0, path.size()});
    return OkStatus();
  };
  CAIRN_RETURN_IF_ERROR(enter(&root));
  while (!frames.empty()) {
    Frame& frame = frames.back();
    const PyValue& value = *frame.value;
    path.resize(frame.path);
    // Plain values, which lead nowhere, cost no path.
    const auto descend = [&](auto key, const PyValue* item) -> Status {
      if (!LeadsOn(*item)) return charge(1);
      path += (path.empty() ? "" : ".") + key();
      return enter(item);
    };
    const size_t i = frame.next++;
    if (value.is(PyKind::kObject)) {
      const PyValue* parts[] = {value.contents, value.state};
      if (i == 2)
        frames.pop_back();
      else if (parts[i])
        CAIRN_RETURN_IF_ERROR(enter(parts[i]));
    } else if (value.is(PyKind::kDict) && i < value.items.size() / 2) {
      CAIRN_RETURN_IF_ERROR(descend([&] { return KeyText(*value.items[2 * i]); }, value.items[2 * i + 1]));
    } else if ((value.is(PyKind::kList) || value.is(PyKind::kTuple)) && i < value.items.size()) {
      CAIRN_RETURN_IF_ERROR(descend([&] { return std::to_string(i); }, value.items[i]));
    } else {
      frames.pop_back();
    }
  }
  return OkStatus();
}

}  // namespace cairn
