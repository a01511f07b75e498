// Takes the weights out of a checkpoint: for release each rounded to nearest even from its fp32 master if it
// has one, else from the stored weight; or all as stored; under Hugging Face names, canonical names, or as a
// native step.
//
// Reads only those tensors. Finite values that would become infinite make it fail, unless
// they are to be saturated; either way each tensor's count is reported.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/formats/systems.h"
#include "convert/transfer/transfer.h"

namespace cairn {

struct StripOptions {
  // fp32, bf16 or fp16. Nothing: each weight as it is stored, bit for bit, and not its master.
  std::optional<Dtype> dtype = Dtype::kF16;
  const System* format = FindSystem("hf");   // one that has a release
  uint64_t max_file_bytes = 50'000'000'000;  // of one safetensors file; transformers' own default
  std::vector<std::string> keep_fp32;        // globs of canonical or written names
  OnOverflow on_overflow = OnOverflow::kInfinity;
  bool quantize = false;             // the weights of linear layers to FP8 (quantized_source.h)
  std::optional<Topology> topology;  // of a native result; the source's by default
  FileCopies copies;                 // files beside safetensors: a tokenizer
  std::string command;               // that asks for it, for the metadata; without paths
  WriterOptions writer;
};

// Errors: InvalidArgument if the format has no form for quantized weights.
Status CheckQuantize(const StripOptions& options);

// Makes a directory of files; for the native format RUN/step-N. Errors: NotSupported (architecture, dtype);
// Corrupt (tensors that are not the model's); InvalidArgument (a glob that matches nothing); those of
// QuantizedSource.
Result<Transfer> PlanStrip(CheckpointSource& source, const StripOptions& options);

// Parameters that have optimizer states but no weight, because the training fused weights only for its
// optimizer. A release does not need them.
std::set<std::string> OrphanStates(const TensorTable& table);

}  // namespace cairn
