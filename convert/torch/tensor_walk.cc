#include "convert/torch/tensor_walk.h"

#include <vector>

namespace cairn {
namespace {

constexpr size_t kMaxDepth = 100;
constexpr uint64_t kMaxVisits = 1 << 22;  // containers, where many are shared

// Dict-like parts of a value, then sequences: what a path can lead into.
struct Frame {
  const PyValue* value;
  size_t next = 0;  // of its items
  size_t path = 0;  // length of the path to it
};

}  // namespace

std::string KeyText(const PyValue& key) {
  if (key.is(PyKind::kStr)) return std::string(key.text);
  if (key.is(PyKind::kInt)) return std::to_string(key.integer);
  if (key.is(PyKind::kGlobal)) return key.ClassName();
  if (!key.is(PyKind::kTuple)) return "?";
  std::string text;  // (torch.bfloat16, torch.float32)
  for (const PyValue* item : key.items)
    text += (text.empty() ? "" : ",") + (item->is(PyKind::kTuple) ? "?" : KeyText(*item));
  return "(" + text + ")";
}

Status ForEachTensor(const PyValue& root,
                     const std::function<Status(const std::string&, const TensorRef&)>& visit) {
  std::string path;
  std::vector<Frame> frames;
  uint64_t visits = 0;
  const auto enter = [&](const PyValue* value) -> Status {
    if (value->is(PyKind::kTensor)) return visit(path, *value->tensor);
    if (++visits > kMaxVisits || frames.size() > kMaxDepth)
      return Corrupt("its object is nested without end at {:.80}", path);
    frames.push_back({value, 0, path.size()});
    return OkStatus();
  };
  CAIRN_RETURN_IF_ERROR(enter(&root));
  while (!frames.empty()) {
    Frame& frame = frames.back();
    const PyValue& value = *frame.value;
    path.resize(frame.path);
    const auto descend = [&](const std::string& key, const PyValue* item) {
      path += (path.empty() ? "" : ".") + key;
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
      CAIRN_RETURN_IF_ERROR(descend(KeyText(*value.items[2 * i]), value.items[2 * i + 1]));
    } else if ((value.is(PyKind::kList) || value.is(PyKind::kTuple)) && i < value.items.size()) {
      CAIRN_RETURN_IF_ERROR(descend(std::to_string(i), value.items[i]));
    } else {
      frames.pop_back();
    }
  }
  return OkStatus();
}

}  // namespace cairn
