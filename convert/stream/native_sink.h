// Stripped weights as a native step of weights only.
#pragma once

#include <memory>

#include "convert/stream/step_builder.h"
#include "convert/stream/weight_sink.h"

namespace cairn {

// Writes `run_dir`/step-N of the source's run and step, on `topology`, with `history`. `progress` is told the
// bytes of each block that the proof reads.
Result<std::unique_ptr<WeightSink>> MakeNativeSink(FileSystem& fs, const std::string& run_dir,
                                                   const Manifest& source, const Topology& topology,
                                                   const nlohmann::json& history,
                                                   const std::vector<StrippedWeight>& weights,
                                                   const StepBuilderOptions& options,
                                                   std::function<void(uint64_t)> progress);

// The tensors of such a step.
std::vector<TensorEntry> NativeTensors(const std::vector<StrippedWeight>& weights);

}  // namespace cairn
