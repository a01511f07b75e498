// Each call appends its opcodes at once; no tree is built. A container opens with a mark and closes with an
// opcode that takes everything up to it, so its size need not be known beforehand.
// Numbers are little-endian, except floats, which pickle stores big-endian.

#include "convert/torch/pickle_emitter.h"

#include <bit>
#include <limits>
#include <nlohmann/json.hpp>

#include "convert/torch/pickle_value.h"

namespace cairn {
namespace {

void AppendLittle(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i);
}

}  // namespace

void PickleEmitter::Int(int64_t value) {
  if (value >= 0 && value < 256) {
    out_ += 'K';
    return AppendLittle(out_, static_cast<uint64_t>(value), 1);
  }
  const bool narrow =
      value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max();
  out_ += narrow ? "J" : "\x8a\x08";
  AppendLittle(out_, static_cast<uint64_t>(value), narrow ? 4 : 8);
}

void PickleEmitter::Float(double value) {
  out_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> 8 * i);
}

void PickleEmitter::Text(std::string_view utf8) {
  std::string opcodes = "X";
  AppendLittle(opcodes, utf8.size(), 4);
  Once(opcodes.append(utf8));
}

void PickleEmitter::Global(std::string_view module, std::string_view name) {
  Once(std::string("c").append(module).append("\n").append(name).append("\n"));
}

void PickleEmitter::Once(std::string opcodes) {
  const auto [value, fresh] =
      written_.try_emplace(std::move(opcodes), static_cast<uint32_t>(written_.size()));
  if (fresh) out_ += value->first;
  fresh ? AppendNumbered('q', 'r', value->second) : AppendNumbered('h', 'j', value->second);
}

void PickleEmitter::AppendNumbered(char short_opcode, char long_opcode, uint32_t number) {
  const bool is_short = number < 256;
  out_ += is_short ? short_opcode : long_opcode;
  AppendLittle(out_, number, is_short ? 1 : 4);
}

void PickleEmitter::BeginOrderedDict() {
  Global("collections", "OrderedDict");
  out_ += ")R(";
}

void PickleEmitter::BeginObject(std::string_view module, std::string_view name) {
  Global(module, name);
  out_ += ")\x81";
}

void PickleEmitter::Json(const nlohmann::json& value) {
  if (value.is_null()) return None();
  if (value.is_boolean()) return Bool(value.get<bool>());
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    out_ += "\x8a\x09";  // with a zero after it, or it would be negative
    AppendLittle(out_, value.get<uint64_t>(), 8);
    return AppendLittle(out_, 0, 1);
  }
  if (value.is_number_integer()) return Int(value.get<int64_t>());
  if (value.is_number()) return Float(value.get<double>());
  if (value.is_string()) return Text(value.get_ref<const std::string&>());
  if (value.is_array()) {
    BeginList();
    for (const auto& item : value) Json(item);
    return EndList();
  }
  BeginDict();
  for (const auto& [key, item] : value.items()) Entry(key, item);
  EndDict();
}

void PickleEmitter::Entry(std::string_view key, const nlohmann::json& value) {
  Text(key);
  Json(value);
}

void PickleEmitter::Sizes(const Dims& dims) {
  BeginTuple();
  for (const uint64_t size : dims) Int(static_cast<int64_t>(size));
  EndTuple();
}

void PickleEmitter::TorchSize(const Dims& dims) {
  Global("torch", "Size");
  Sizes(dims);
  out_ += '\x85';  // the tuple of its one argument
  Reduce();
}

void PickleEmitter::TorchDtype(Dtype dtype) { Global("torch", TorchName(dtype)); }

// Types without a storage class are stored as bytes, with the name of the type.
void PickleEmitter::Arguments(const nlohmann::json& attributes, Dtype params_dtype) {
  BeginObject("argparse", "Namespace");
  BeginDict();
  for (const auto& [key, value] : attributes.items()) Entry(key, value);
  Entry("bf16", params_dtype == Dtype::kBF16);
  Entry("fp16", params_dtype == Dtype::kF16);
  Text("params_dtype");
  TorchDtype(params_dtype);
  EndDict();
  EndObject();
}

void PickleEmitter::Tensor(Dtype dtype, std::string_view key, const Dims& shape) {
  const std::string_view storage_class = TorchTypeOf(dtype).storage;
  const bool untyped = storage_class.empty();
  Global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  BeginTuple();
  BeginTuple();
  Text("storage");
  Global(untyped ? "torch.storage" : "torch", untyped ? "UntypedStorage" : storage_class);
  Text(key);
  Text("cpu");
  Int(static_cast<int64_t>(shape.Volume() * (untyped ? SizeOf(dtype) : 1)));
  EndTuple();
  out_ += 'Q';
  Int(0);  // where it begins in the storage
  Sizes(shape);
  Dims stride = shape;
  uint64_t run = 1;
  for (int i = shape.rank() - 1; i >= 0; run *= shape[i--]) stride[i] = run;
  Sizes(stride);
  Bool(false);
  BeginOrderedDict();
  EndDict();
  if (untyped) TorchDtype(dtype);
  EndTuple();
  Reduce();
}

std::string PickleEmitter::Finish() {
  out_ += '.';
  return std::move(out_);
}

}  // namespace cairn
