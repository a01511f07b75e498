// The contents of a pickle as a tree of plain values. Nothing in it is code: a class or a function is its
// name.
//
// A value belongs to its Pickle, which must outlive it. Values may be shared and may refer back to a value
// that holds them, so a walk of the tree must keep count. Texts are views of the pickle's own bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/box.h"
#include "ckpt/base/dtype.h"

namespace cairn {

// An element type of torch; some have no Dtype here and can be shown but not read.
struct TorchType {
  std::string_view name;     // "bfloat16"
  std::string_view storage;  // its storage class: "BFloat16Storage"; empty: it has none
  uint64_t bytes = 0;        // of one element
  std::optional<Dtype> dtype;
};
// By name or by storage class; null for others.
const TorchType* FindTorchType(std::string_view name);
const TorchType& TorchTypeOf(Dtype dtype);
const TorchType* FindTorchStorage(std::string_view storage_class);

// Where a tensor's elements lie: a persistent id of torch.save.
struct StorageRef {
  const TorchType* type = nullptr;
  std::string_view key;
  std::string_view location;  // "cpu", "cuda:3": ignored
  uint64_t elements = 0;
  uint64_t bytes = 0;
};

struct TensorRef {
  const TorchType* type = nullptr;
  const StorageRef* storage = nullptr;  // null: a meta tensor, which has no elements
  uint64_t offset = 0;                  // of its first element in the storage, elements
  Dims shape;
  Dims stride;  // elements, of shape's rank

  bool contiguous() const;
};

enum class PyKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // beyond 64 bits; text: little-endian two's complement
  kFloat,
  kStr,
  kBytes,
  kList,
  kTuple,
  kDict,
  kSet,
  kGlobal,  // module.text: a class or function that is a value
  kObject,  // module.text: the class; items: the arguments it was made with
  kStorage,
  kTensor,
};

struct PyValue {
  PyKind kind = PyKind::kNone;
  bool latin1 = false;  // kBytes: `text` is UTF-8 of one code point a byte (protocol 2)
  union {
    int64_t integer = 0;  // kBool, kInt
    double real;          // kFloat
  };
  std::string_view text;  // kStr, kBytes, kBigInt, kGlobal, kObject
  std::string_view module;
  std::vector<PyValue*> items;  // kDict: key, value, key, value, ...
  PyValue* contents = nullptr;  // kObject: the kList or kDict that was filled into it
  PyValue* state = nullptr;     // the argument of BUILD; attributes as a rule
  const StorageRef* storage = nullptr;
  const TensorRef* tensor = nullptr;

  bool is(PyKind k) const { return kind == k; }
  // "module.name" of a kGlobal or kObject.
  std::string ClassName() const;
  bool IsNamed(std::string_view name) const;  // the last part of it
};

// An attribute in an object's state: a dict, or (attributes, slots), each of which may be None.
const PyValue* FindAttribute(const PyValue* state, std::string_view key);
// The value under a text key of a dict, or an object's attribute; null if missing.
const PyValue* Find(const PyValue& value, std::string_view key);
// The same, and only of that kind.
const PyValue* FindKind(const PyValue& value, std::string_view key, PyKind kind);
// The item of a list or tuple; the entry of an integer key of a dict. Null if missing. Of equal keys
// the last one counts, as in Python.
const PyValue* ItemOf(const PyValue* list, size_t i);
const PyValue* EntryOf(const PyValue* dict, int64_t key);

std::optional<int64_t> AsInt(const PyValue* value);    // also of a bool; of null: nothing
std::optional<double> AsNumber(const PyValue* value);  // int, float or bool
std::optional<std::string_view> AsText(const PyValue* value);
// Sizes or strides: a tuple or list of up to kMaxRank numbers from 0 to 2^62.
std::optional<Dims> AsDims(const PyValue* value);
// The bytes of a kBytes; nothing if the text is not latin1. At most `max_bytes` are made.
std::optional<std::string> AsBytes(const PyValue& value, size_t max_bytes);

}  // namespace cairn
