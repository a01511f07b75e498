// Arguments of real trainings (tests/convert/formats/megatron_model/megatron_namespaces.json): of Megatron-LM
// d98e8a6 and Megatron-DeepSpeed 4efb479, after parse_args and validate_args.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

namespace cairn {

// `program`: "megatron_lm" or "megatron_deepspeed"; `kind`: "gpt", or another one, which has the differences
// from "gpt".
inline nlohmann::json MegatronNamespace(const char* program, const char* kind) {
  std::ifstream file(CAIRN_CONVERT_DATA_DIR "/megatron_namespaces.json");
  const nlohmann::json all = nlohmann::json::parse(file).at(program);
  nlohmann::json args = all.at("gpt");
  args.update(all.at(kind));
  return args;
}

}  // namespace cairn
