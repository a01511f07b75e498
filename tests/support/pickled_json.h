// A JSON value as if read from a pickle, for parsers that take a PyValue.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "convert/torch/pickle_emitter.h"
#include "convert/torch/pickle_machine.h"

namespace cairn {

// The value is `->root`; it lives as long as the pickle.
inline std::unique_ptr<Pickle> PickledJson(const nlohmann::json& value) {
  PickleEmitter emitter;
  emitter.Json(value);
  return Unpickle(std::make_shared<const std::string>(emitter.Finish())).value();
}

}  // namespace cairn
