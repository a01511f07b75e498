// The tensors of a pickled object under the path of keys and positions that leads to each.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

// How a key of a dict is spelt in a path: a text as it is, a number in decimal, the start of anything else.
std::string KeyText(const PyValue& key);

// The longest stretches of its storage in which a tensor's elements lie one after another.
struct TensorRuns {
  int outer = 0;          // leading dimensions, whose indices distinguish them
  uint64_t elements = 0;  // of each
  uint64_t count = 0;     // UINT64_MAX: as many at least
};
TensorRuns RunsOf(const TensorRef& tensor);
// Calls `visit(element)` for each of them, in the tensor's order, with the element of the storage at which it
// begins.
void ForEachTensorRun(const TensorRef& tensor, const std::function<void(uint64_t element)>& visit);

// Calls `visit(path, tensor)` for each tensor in dicts, lists, tuples and objects below `root`, in order; the
// path's parts are joined by dots, and empty for `root` itself. A tensor that occurs twice is visited twice.
// Stops at the first error. A value whose elements no walk understands (a sparse tensor, an array of NumPy)
// goes to `hidden`, if given, with the error that would otherwise be returned; it is not walked. Errors:
// Corrupt if the object holds itself, or shares its parts so often that walking it would cost far more than
// reading it; NotSupported naming such a value.
using VisitHidden = std::function<Status(const std::string& path, const PyValue& value, Status why)>;
Status ForEachTensor(const PyValue& root,
                     const std::function<Status(const std::string&, const TensorRef&)>& visit,
                     const VisitHidden& hidden = {});

// Whether a name is one that modules give their parameters: "net.0.weight", "bias".
bool IsCalledParameter(std::string_view name);

// What lies below a value, hidden in calls or not.
struct HeldElements {
  int rank = -1;           // the largest number of dimensions of its tensors; -1 without a tensor
  bool parameter = false;  // a text says "weight" or "bias", as the keys of modules' tensors do
  bool others = false;     // bare storages and arrays of NumPy
};
// At most `visits` values are looked at, and subtracted; if that is not enough, it counts as if it had
// matrices.
HeldElements ElementsIn(const PyValue& root, uint64_t& visits);

}  // namespace cairn
