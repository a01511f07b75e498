#include "convert/formats/megatron/argparse_namespace.h"

namespace cairn {

void EmitNamespace(PickleEmitter& pickle, const nlohmann::json& attributes, Dtype params_dtype) {
  pickle.BeginObject("argparse", "Namespace");
  pickle.BeginDict();
  for (const auto& [key, value] : attributes.items()) pickle.Entry(key, value);
  pickle.Entry("bf16", params_dtype == Dtype::kBF16);
  pickle.Entry("fp16", params_dtype == Dtype::kF16);
  pickle.Text("params_dtype");
  pickle.TorchDtype(params_dtype);
  pickle.EndDict();
  pickle.EndObject();
}

}  // namespace cairn
