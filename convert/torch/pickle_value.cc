// The table of torch's types comes first; names and storage classes are looked up in it. The rest are
// look-ups that assume nothing: each gives nothing if the value is of another kind, so readers can
// take a hostile file apart step by step. Of equal keys the last one counts, as in Python.

#include "convert/torch/pickle_value.h"

#include <algorithm>
#include <array>

namespace cairn {
namespace {

constexpr uint64_t kMaxSize = uint64_t{1} << 62;
constexpr size_t kMaxAttributes =
    4096;  // of an object: many may share one state, and each look-up reads it all

constexpr auto kTorchTypes = std::to_array<TorchType>({
    {"float32", "FloatStorage", 4, Dtype::kF32},
    {"float64", "DoubleStorage", 8, Dtype::kF64},
    {"float16", "HalfStorage", 2, Dtype::kF16},
    {"bfloat16", "BFloat16Storage", 2, Dtype::kBF16},
    {"int64", "LongStorage", 8, Dtype::kI64},
    {"int32", "IntStorage", 4, Dtype::kI32},
    {"int16", "ShortStorage", 2, Dtype::kI16},
    {"int8", "CharStorage", 1, Dtype::kI8},
    {"uint8", "ByteStorage", 1, Dtype::kU8},
    {"bool", "BoolStorage", 1, Dtype::kBool},
    {"float8_e4m3fn", "", 1, Dtype::kF8E4M3},
    {"float8_e5m2", "", 1, Dtype::kF8E5M2},
    {"complex64", "ComplexFloatStorage", 8, std::nullopt},
    {"complex128", "ComplexDoubleStorage", 16, std::nullopt},
    {"complex32", "", 4, std::nullopt},
    {"uint16", "", 2, std::nullopt},
    {"uint32", "", 4, std::nullopt},
    {"uint64", "", 8, std::nullopt},
    {"float8_e4m3fnuz", "", 1, std::nullopt},
    {"float8_e5m2fnuz", "", 1, std::nullopt},
    {"float8_e8m0fnu", "", 1, Dtype::kF8E8M0},
    {"float4_e2m1fn_x2", "", 1, Dtype::kF4x2},
    {"quint8", "QUInt8Storage", 1, std::nullopt},
    {"qint8", "QInt8Storage", 1, std::nullopt},
    {"qint32", "QInt32Storage", 4, std::nullopt},
    {"quint4x2", "QUInt4x2Storage", 1, std::nullopt},
    {"quint2x4", "QUInt2x4Storage", 1, std::nullopt},
    {"untyped", "UntypedStorage", 1, std::nullopt},
});

const PyValue* FindEntry(const PyValue& dict, std::string_view key) {
  for (size_t i = dict.items.size(); i >= 2; i -= 2)  // the last one counts
    if (dict.items[i - 2]->is(PyKind::kStr) && dict.items[i - 2]->text == key) return dict.items[i - 1];
  return nullptr;
}

}  // namespace

const TorchType* FindTorchType(std::string_view name) {
  for (const TorchType& type : kTorchTypes)
    if (type.name == name) return &type;
  return nullptr;
}

const TorchType& TorchTypeOf(Dtype dtype) {
  return *std::ranges::find(kTorchTypes, std::optional(dtype), &TorchType::dtype);
}

const TorchType* FindTorchStorage(std::string_view storage_class) {
  for (const TorchType& type : kTorchTypes)
    if (!type.storage.empty() && type.storage == storage_class) return &type;
  return nullptr;
}

bool TensorRef::contiguous() const {
  uint64_t run = 1;
  for (int i = shape.rank() - 1; i >= 0; run *= shape[i--]) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && stride[i] != run) return false;
  }
  return true;
}

std::string PyValue::ClassName() const {
  return module.empty() ? std::string(text) : std::string(module) + "." + std::string(text);
}

bool PyValue::IsNamed(std::string_view name) const {
  return (kind == PyKind::kGlobal || kind == PyKind::kObject) && text == name;
}

const PyValue* FindAttribute(const PyValue* state, std::string_view key) {
  for (const PyValue* part : {state, ItemOf(state, 0), ItemOf(state, 1)})
    if (part && part->is(PyKind::kDict) && part->items.size() <= 2 * kMaxAttributes)
      if (const PyValue* found = FindEntry(*part, key)) return found;
  return nullptr;
}

const PyValue* Find(const PyValue& value, std::string_view key) {
  if (value.is(PyKind::kDict)) return FindEntry(value, key);
  if (!value.is(PyKind::kObject)) return nullptr;
  const PyValue* found = FindAttribute(value.state, key);
  return found ? found : FindAttribute(value.contents, key);
}

const PyValue* FindKind(const PyValue& value, std::string_view key, PyKind kind) {
  const PyValue* found = Find(value, key);
  return found && found->is(kind) ? found : nullptr;
}

const PyValue* ItemOf(const PyValue* list, size_t i) {
  return list && (list->is(PyKind::kList) || list->is(PyKind::kTuple)) && i < list->items.size()
             ? list->items[i]
             : nullptr;
}

const PyValue* EntryOf(const PyValue* dict, int64_t key) {
  if (!dict || !dict->is(PyKind::kDict)) return nullptr;
  for (size_t i = dict->items.size(); i >= 2; i -= 2)  // the last one counts
    if (AsInt(dict->items[i - 2]) == key) return dict->items[i - 1];
  return nullptr;
}

std::optional<int64_t> AsInt(const PyValue* value) {
  if (!value || !(value->is(PyKind::kInt) || value->is(PyKind::kBool))) return std::nullopt;
  return value->integer;
}

std::optional<double> AsNumber(const PyValue* value) {
  if (value && value->is(PyKind::kFloat)) return value->real;
  if (const auto integer = AsInt(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

std::optional<std::string_view> AsText(const PyValue* value) {
  if (!value || !value->is(PyKind::kStr)) return std::nullopt;
  return value->text;
}

std::optional<Dims> AsDims(const PyValue* value) {
  if (!value || !(value->is(PyKind::kTuple) || value->is(PyKind::kList))) return std::nullopt;
  if (value->items.size() > kMaxRank) return std::nullopt;
  Dims dims;
  for (const PyValue* item : value->items) {
    if (!item->is(PyKind::kInt) || item->integer < 0 || item->integer > static_cast<int64_t>(kMaxSize))
      return std::nullopt;
    dims.push_back(static_cast<uint64_t>(item->integer));
  }
  return dims;
}

std::optional<std::string> AsBytes(const PyValue& value, size_t max_bytes) {
  if (!value.is(PyKind::kBytes)) return std::nullopt;
  if (!value.latin1) return std::string(value.text.substr(0, max_bytes));
  std::string bytes;
  for (size_t i = 0; i < value.text.size() && bytes.size() < max_bytes; ++i) {
    const auto lead = static_cast<uint8_t>(value.text[i]);
    if (lead < 0x80) {
      bytes.push_back(static_cast<char>(lead));
      continue;
    }
    if ((lead != 0xc2 && lead != 0xc3) || ++i == value.text.size()) return std::nullopt;
    bytes.push_back(static_cast<char>((lead << 6 & 0xc0) | (value.text[i] & 0x3f)));
  }
  return bytes;
}

}  // namespace cairn
