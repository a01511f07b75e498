// CallKnown() tries containers first, then the functions of torch and NumPy. A rule gives null if the
// arguments are not what it expects; the call then becomes an object that is named after its callable and
// keeps its arguments, so nothing is guessed. Everything that copies items is charged to `copies`: a pickle
// may refer to one large list as often as it likes.

#include "convert/torch/pickle_calls.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace cairn {
namespace {

using Values = std::vector<PyValue*>;

constexpr auto kDangerousModules = std::to_array<std::string_view>(
    {"os", "posix", "nt", "subprocess", "sys", "runpy", "pty", "socket", "shutil", "importlib", "ctypes",
     "webbrowser", "commands", "code", "torch.hub", "torch.utils.cpp_extension", "multiprocessing.util"});
constexpr auto kDangerousBuiltins =
    std::to_array<std::string_view>({"eval", "exec", "execfile", "compile", "setattr", "delattr", "open",
                                     "__import__", "apply", "globals", "vars", "input", "breakpoint"});

bool IsBuiltin(std::string_view module) { return module == "__builtin__" || module == "builtins"; }

PyValue* NewTensor(Pickle& pickle, const TensorRef& tensor) {
  PyValue* value = pickle.New(PyKind::kTensor);
  value->tensor = &pickle.tensors.emplace_back(tensor);
  return value;
}

const TorchType* DtypeArgument(const PyValue* value) {
  return value && value->is(PyKind::kGlobal) && value->module == "torch" ? FindTorchType(value->text)
                                                                         : nullptr;
}

// {"neg": True}, {"conj": True}: the elements mean something else than the storage says.
bool ChangesElements(const PyValue* metadata) {
  if (!metadata || metadata->is(PyKind::kNone)) return false;
  if (!metadata->is(PyKind::kDict)) return true;
  for (size_t i = 1; i < metadata->items.size(); i += 2)
    if (AsInt(metadata->items[i]) != 0) return true;
  return false;
}

// (storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata]); null if the arguments are
// others, or if its elements are not those of its storage.
PyValue* RebuildTensor(Pickle& pickle, const Values& args, bool has_dtype) {
  if (args.size() < 4 || !args[0]->is(PyKind::kStorage)) return nullptr;
  const auto offset = AsInt(args[1]);
  const auto shape = AsDims(args[2]), stride = AsDims(args[3]);
  if (!offset || *offset < 0 || !shape || !stride || shape->rank() != stride->rank()) return nullptr;
  const size_t metadata = has_dtype ? 7 : 6;
  if (args.size() > metadata && ChangesElements(args[metadata])) return nullptr;
  const TorchType* type =
      has_dtype ? DtypeArgument(args.size() > 6 ? args[6] : nullptr) : args[0]->storage->type;
  if (!type) return nullptr;
  return NewTensor(pickle, {type, args[0]->storage, static_cast<uint64_t>(*offset), *shape, *stride});
}

PyValue* RebuildMetaTensor(Pickle& pickle, const Values& args) {
  if (args.size() < 3) return nullptr;
  const auto shape = AsDims(args[1]), stride = AsDims(args[2]);
  if (!DtypeArgument(args[0]) || !shape || !stride || shape->rank() != stride->rank()) return nullptr;
  return NewTensor(pickle, {DtypeArgument(args[0]), nullptr, 0, *shape, *stride});
}

PyValue* RebuildTensorLike(Pickle& pickle, const PyValue& callable, const Values& args) {
  if (callable.text == "_rebuild_tensor_v2" || callable.text == "_rebuild_tensor")
    return RebuildTensor(pickle, args, false);
  if (callable.text == "_rebuild_tensor_v3") return RebuildTensor(pickle, args, true);
  if (callable.text == "_rebuild_meta_tensor_no_storage") return RebuildMetaTensor(pickle, args);
  const bool wraps = callable.text == "_rebuild_parameter" ||
                     callable.text == "_rebuild_parameter_with_state" ||
                     callable.text == "_rebuild_device_tensor_from_cpu_tensor";
  return wraps && !args.empty() && args[0]->is(PyKind::kTensor) ? args[0] : nullptr;
}

// The number of numpy.dtype's constructor and state: ('f8', False, True), (3, '<', ...).
PyValue* NumpyScalar(Pickle& pickle, const Values& args) {
  if (args.size() != 2 || !args[0]->IsNamed("dtype") || args[0]->items.empty()) return nullptr;
  const auto code = AsText(args[0]->items[0]);
  const auto bytes = AsBytes(*args[1], 9);
  if (!code || code->size() != 2 || !bytes || bytes->empty() || bytes->size() > sizeof(uint64_t) ||
      bytes->size() != static_cast<size_t>((*code)[1] - '0'))
    return nullptr;
  const PyValue* state = args[0]->state;
  if (state && state->items.size() > 1 && AsText(state->items[1]) == ">") return nullptr;
  uint64_t bits = 0;
  std::memcpy(&bits, bytes->data(), bytes->size());
  const int unused = 64 - 8 * static_cast<int>(bytes->size());
  PyValue* value = pickle.New(PyKind::kInt);
  if (*code == "f8" || *code == "f4") {
    value->kind = PyKind::kFloat;
    value->real =
        *code == "f8" ? std::bit_cast<double>(bits) : std::bit_cast<float>(static_cast<uint32_t>(bits));
  } else if ((*code)[0] == 'i') {
    value->integer = static_cast<int64_t>(bits << unused) >> unused;
  } else if ((*code)[0] == 'u' && bits <= INT64_MAX) {
    value->integer = static_cast<int64_t>(bits);
  } else if (*code == "b1") {
    value->kind = PyKind::kBool;
    value->integer = bits != 0;
  } else {
    return nullptr;
  }
  return value;
}

PyValue* EncodedBytes(Pickle& pickle, const Values& args) {
  const auto encoding = AsText(args.size() == 2 ? args[1] : nullptr);
  if (!encoding || !args[0]->is(PyKind::kStr) || !(*encoding == "latin1" || *encoding == "latin-1"))
    return nullptr;
  PyValue* value = pickle.New(PyKind::kBytes);
  value->text = args[0]->text;
  value->latin1 = true;
  return value;
}

bool IsSequence(const PyValue& value) { return value.is(PyKind::kList) || value.is(PyKind::kTuple); }

bool ArePairs(const Values& items) {
  return std::ranges::all_of(items, [](const PyValue* i) { return IsSequence(*i) && i->items.size() == 2; });
}

Status Charge(uint64_t& copies, uint64_t items) {
  if (items > copies)
    return Corrupt("its pickle copies its own parts over and over; it is made to exhaust memory");
  copies -= items;
  return OkStatus();
}

// set([...]), OrderedDict([(key, value), ...]), Counter({...}): null if the arguments are something else.
Result<PyValue*> Container(Pickle& pickle, const PyValue& callable, const Values& args, uint64_t& copies) {
  PyKind kind = PyKind::kDict;
  if (IsBuiltin(callable.module)) {
    if (callable.text == "set" || callable.text == "frozenset")
      kind = PyKind::kSet;
    else if (callable.text == "list")
      kind = PyKind::kList;
    else if (callable.text == "bytes" || callable.text == "bytearray")
      kind = PyKind::kBytes;
    else if (callable.text != "dict")
      return nullptr;
  } else if (callable.module != "collections" ||
             !(callable.text == "OrderedDict" || callable.text == "defaultdict" ||
               callable.text == "Counter")) {
    return nullptr;
  }
  if (kind == PyKind::kBytes) {  // bytes(), bytearray(b'...'), bytearray('...', 'latin-1')
    if (args.size() == 2) return EncodedBytes(pickle, args);
    if (!args.empty()) return args[0]->is(PyKind::kBytes) ? args[0] : nullptr;
    return pickle.New(kind);
  }
  const bool bare = args.empty() || callable.text == "defaultdict";
  if (!bare && args.size() != 1) return nullptr;
  if (bare) return pickle.New(kind);
  const Values& from = args[0]->items;
  CAIRN_RETURN_IF_ERROR(Charge(copies, from.size()));
  if (kind == PyKind::kDict) {
    if (!args[0]->is(PyKind::kDict) && !(IsSequence(*args[0]) && ArePairs(from))) return nullptr;
    PyValue* dict = pickle.New(kind);
    for (PyValue* item : from) {
      if (args[0]->is(PyKind::kDict))
        dict->items.push_back(item);
      else
        dict->items.insert(dict->items.end(), item->items.begin(), item->items.end());
    }
    return dict;
  }
  if (!IsSequence(*args[0]) && !args[0]->is(PyKind::kSet)) return nullptr;
  PyValue* value = pickle.New(kind);
  value->items = from;
  return value;
}

PyValue* Known(Pickle& pickle, const PyValue& callable, const Values& args) {
  const std::string_view module = callable.module, name = callable.text;
  if (module == "torch._utils") return RebuildTensorLike(pickle, callable, args);
  if (module == "torch._tensor" && name == "_rebuild_from_type_v2") {  // (func, type, args, state)
    if (args.size() < 3 || !args[0]->is(PyKind::kGlobal) || !args[2]->is(PyKind::kTuple)) return nullptr;
    return args[0]->module == "torch._utils" ? RebuildTensorLike(pickle, *args[0], args[2]->items) : nullptr;
  }
  if (module == "torch" && name == "Size")
    return args.size() == 1 && args[0]->is(PyKind::kTuple) ? args[0] : nullptr;
  if (module == "_codecs" && name == "encode") return EncodedBytes(pickle, args);
  if ((module == "numpy.core.multiarray" || module == "numpy._core.multiarray") && name == "scalar")
    return NumpyScalar(pickle, args);
  return nullptr;
}

}  // namespace

Result<PyValue*> CallKnown(Pickle& pickle, const PyValue& callable, const PyValue& args, uint64_t& copies) {
  if (callable.is(PyKind::kGlobal)) {
    CAIRN_ASSIGN_OR_RETURN(PyValue * value, Container(pickle, callable, args.items, copies));
    if (!value) value = Known(pickle, callable, args.items);
    if (value) return value;
  }
  CAIRN_RETURN_IF_ERROR(Charge(copies, args.items.size()));
  PyValue* object = pickle.New(PyKind::kObject);
  object->module = callable.module;
  object->text = callable.text;
  object->items = args.items;
  return object;
}

Result<PyValue*> StorageOf(Pickle& pickle, const PyValue& id) {
  const bool is_storage = id.is(PyKind::kTuple) && id.items.size() >= 5 && AsText(id.items[0]) == "storage" &&
                          id.items[1]->is(PyKind::kGlobal);
  if (!is_storage)
    return NotSupported(
        "a persistent id that is not a storage; a whole module was saved with its code: save its "
        "state_dict()");
  const TorchType* type = FindTorchStorage(id.items[1]->text);
  if (!type) return NotSupported("storages of type {} are not supported", id.items[1]->ClassName());
  const auto key = AsText(id.items[2]);
  const auto elements = AsInt(id.items[4]);
  if (!key || !elements || *elements < 0 || *elements > INT64_MAX / 16)
    return Corrupt("a storage without a key or a size");
  if (id.items.size() > 5 && !id.items[5]->is(PyKind::kNone))
    return NotSupported(
        "storage {} is a view of another one, as torch before 0.4 saved it; load and save it with "
        "a newer torch",
        *key);
  const auto count = static_cast<uint64_t>(*elements);
  PyValue* value = pickle.New(PyKind::kStorage);
  value->storage = &pickle.storages.emplace_back(
      StorageRef{type, *key, AsText(id.items[3]).value_or(""), count, count * type->bytes});
  return value;
}

bool IsSuspicious(std::string_view module, std::string_view name) {
  if (IsBuiltin(module)) return std::ranges::find(kDangerousBuiltins, name) != kDangerousBuiltins.end();
  return std::ranges::any_of(kDangerousModules, [&](std::string_view dangerous) {
    return module == dangerous || (module.starts_with(dangerous) && module[dangerous.size()] == '.');
  });
}

}  // namespace cairn
