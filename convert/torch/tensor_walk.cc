// ForEachTensor() goes depth first with a stack of frames, without recursion. Visited may be shared or hold
// themselves, and a tensor that occurs twice must be visited twice, so a set of visited values would be
// wrong. Instead every visit is paid from one budget, and depth and length of paths are bounded. An object
// made by a call that the machine does not know is refused if elements are among its arguments: the walk
// would pass over them.

#include "convert/torch/tensor_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <vector>

namespace cairn {
namespace {

constexpr size_t kMaxDepth = 100;
constexpr size_t kMaxPathBytes = 1 << 20;
constexpr uint64_t kPathCost = 64;    // bytes of a path that cost as much as a visit of a plain value
constexpr size_t kMaxKeyBytes = 256;  // of a key that is not text
// The most that a walk may cost if values are shared, in visits of plain values.
constexpr uint64_t kMaxCost = 1 << 22;
constexpr uint64_t kContainerCost = 4, kTensorCost = 16;

// A value that a path can lead into, and how far it has been walked.
struct Frame {
  const PyValue* value;
  size_t next = 0;  // of its items
  size_t path = 0;  // length of the path to it
};

bool LeadsOn(const PyValue& value) {
  return value.is(PyKind::kTensor) || value.is(PyKind::kList) || value.is(PyKind::kTuple) ||
         value.is(PyKind::kDict) || value.is(PyKind::kObject) || value.is(PyKind::kStorage);
}

bool IsNumpyArray(const PyValue& value) {
  return value.is(PyKind::kObject) && value.module.starts_with("numpy") &&
         (value.text == "_reconstruct" || value.text == "_frombuffer");
}

using Visited = std::unordered_set<const PyValue*>;

// Visits all values below `root`, hidden in calls or not, each once, until `visit` returns false. Passes over
// those in `known`. Returns what was visited.
Visited VisitAll(const PyValue& root, const std::function<bool(const PyValue&)>& visit,
                 const Visited& known = {}) {
  Visited seen;
  std::vector<const PyValue*> todo{&root};
  while (!todo.empty()) {
    const PyValue* value = todo.back();
    todo.pop_back();
    if (!value || known.contains(value) || !seen.insert(value).second) continue;
    if (!visit(*value)) break;
    todo.insert(todo.end(), value->items.rbegin(), value->items.rend());
    todo.insert(todo.end(), {value->contents, value->state});
  }
  return seen;
}

// "rank 1's part", by the place of its first shard; "one rank's part" if unknown.
std::string PartOf(const PyValue& sharded) {
  std::optional<int64_t> rank;
  VisitAll(sharded, [&](const PyValue& value) {
    if (value.IsNamed("_remote_device")) rank = AsInt(Find(value, "_rank"));
    return !rank;
  });
  return rank ? fmt::format("rank {}'s part", *rank) : "one rank's part";
}

// Errors: NotSupported if the walk would skip elements, since it does not look among the arguments of calls
// that the machine does not know. `clean`: values without any below them. `visits` counts.
Status CheckNothingHidden(const PyValue& value, const std::string& path, Visited& clean, uint64_t& visits) {
  bool hides = value.is(PyKind::kStorage) || IsNumpyArray(value);
  for (const PyValue* argument : value.items) {
    if (hides || !value.is(PyKind::kObject)) break;
    Visited visited = VisitAll(
        *argument,
        [&](const PyValue& below) {
          hides = below.is(PyKind::kTensor) || below.is(PyKind::kStorage) || IsNumpyArray(below);
          return !hides;
        },
        clean);
    visits += visited.size();
    if (!hides) clean.merge(visited);
  }
  if (!hides) return OkStatus();
  for (const std::string_view part : {"DTensor", "ShardedTensor"})
    if (std::ranges::any_of(value.items, [&](const PyValue* item) {
          return item->is(PyKind::kGlobal) && item->text == part;
        }))
      return NotSupported(
          "{:.80} is a {}, of which this file has only {}; save the whole with torch.distributed.checkpoint, "
          "or as full tensors",
          path, part, PartOf(value));
  return NotSupported(
      "{:.80}: {} holds elements that Cairn does not understand (sparse, quantized, nested, conjugate or "
      "negative tensors, numpy arrays); save it as a plain tensor",
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
                     const std::function<Status(const std::string&, const TensorRef&)>& visit,
                     const VisitHidden& hidden) {
  std::string path;
  std::vector<Frame> frames;
  Visited clean;
  uint64_t left = kMaxCost;
  const auto charge = [&](uint64_t cost) {
    const uint64_t all = cost + path.size() / kPathCost;
    if (all > left || frames.size() > kMaxDepth || path.size() > kMaxPathBytes)
      return Corrupt("its object is nested endlessly at {:.80}", path);
    left -= all;
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
    uint64_t visits = 0;
    Status why = CheckNothingHidden(*value, path, clean, visits);
    CAIRN_RETURN_IF_ERROR(charge(visits));
    if (!why.ok()) return hidden ? hidden(path, *value, std::move(why)) : why;
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

bool IsCalledParameter(std::string_view name) {
  name.remove_prefix(name.rfind('.') + 1);
  return name == "weight" || name == "bias";
}

HeldElements ElementsIn(const PyValue& root, uint64_t& visits) {
  HeldElements held;
  VisitAll(root, [&](const PyValue& value) {
    if (visits == 0) {
      held.rank = kMaxRank;
      return false;
    }
    --visits;
    if (value.is(PyKind::kTensor)) held.rank = std::max(held.rank, value.tensor->shape.rank());
    held.parameter |= value.is(PyKind::kStr) && IsCalledParameter(value.text);
    held.others |= value.is(PyKind::kStorage) || IsNumpyArray(value);
    return true;
  });
  return held;
}

}  // namespace cairn
