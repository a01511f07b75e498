// Writes pickles that torch.load(weights_only=True) takes: protocol 2, plain values, tensors, and those
// objects that a checkpoint's reader insists on.
//
// The same calls give the same bytes. Texts and classes are written once and then named by their number, as
// Python does; other equal values are written twice, and storages are distinguished by their keys. Source:
// CPython's pickletools, and torch's _weights_only_unpickler.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ckpt/base/box.h"
#include "ckpt/base/dtype.h"

namespace cairn {

class PickleEmitter {
 public:
  PickleEmitter() : out_("\x80\x02") {}

  void None() { out_ += 'N'; }
  void Bool(bool value) { out_ += value ? '\x88' : '\x89'; }
  void Int(int64_t value);
  void Float(double value);
  void Text(std::string_view utf8);

  // Between Begin and End of a dict: key, value, key, value, ...
  void BeginDict() { out_ += "}("; }
  void BeginOrderedDict();
  void EndDict() { out_ += 'u'; }
  void BeginList() { out_ += "]("; }
  void EndList() { out_ += 'e'; }
  void BeginTuple() { out_ += '('; }
  void EndTuple() { out_ += 't'; }

  // A class or function as a value. Its call: the tuple of its arguments follows, then Reduce().
  void Global(std::string_view module, std::string_view name);
  void Reduce() { out_ += 'R'; }
  // An object of a class: its state (a dict of attributes as a rule) follows, then EndObject().
  void BeginObject(std::string_view module, std::string_view name);
  void EndObject() { out_ += 'b'; }

  void Json(const nlohmann::json& value);                         // as dicts, lists and plain values
  void Sizes(const Dims& dims);                                   // a tuple of ints
  void TorchSize(const Dims& dims);                               // torch.Size
  void TorchDtype(Dtype dtype);                                   // torch.bfloat16
  void Entry(std::string_view key, const nlohmann::json& value);  // of a dict that is open

  // An argparse.Namespace with these attributes, and params_dtype: a training's arguments.
  void Arguments(const nlohmann::json& attributes, Dtype params_dtype);
  // A contiguous tensor that is all of its storage, record data/KEY.
  void Tensor(Dtype dtype, std::string_view key, const Dims& shape);

  // The pickle. To be called once, last.
  std::string Finish();

 private:
  // These opcodes, which make a value; or its number, if they were written before.
  void Once(std::string opcodes);
  void AppendNumbered(char short_opcode, char long_opcode, uint32_t number);

  std::string out_;
  std::unordered_map<std::string, uint32_t> written_;  // by Once(): their numbers
};

}  // namespace cairn
