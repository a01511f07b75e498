// Stripped weights as a directory of safetensors files under the names of an architecture table.
//
// The same weights and options give the same bytes. Every tensor is read back and compared before the
// directory gets its name; SHA256SUMS lists every other file, for `sha256sum -c`.
// One file, or several with their index where they exceed the shard size, named as the transformers package
// names them. Blocks go to their places as they come, transposed where the table says so, so that memory does
// not depend on a tensor's size.
#pragma once

#include <functional>
#include <memory>

#include "ckpt/io/file_copies.h"
#include "ckpt/step/partial_dir.h"
#include "convert/families/foreign_model.h"
#include "convert/formats/hugging_face/safetensors_writer.h"
#include "convert/stream/step_builder.h"
#include "convert/stream/weight_sink.h"

namespace cairn {

// Of each foreign tensor. `model` has passed CheckAgainst().
std::vector<uint64_t> ForeignBytes(const ForeignModel& model, const std::vector<StrippedWeight>& weights);

// Tensors of the given sizes into files of at most `max_bytes`, in order; one that is larger has a file of
// its own.
std::vector<std::vector<size_t>> CutIntoFiles(const std::vector<uint64_t>& tensor_bytes, uint64_t max_bytes);

// Writes `directory`, which must not exist. `model` has passed CheckAgainst() and every part of a foreign
// tensor has the same dtype. `copies` are files that go beside the weights, by name, and win over those
// of the model. `progress` is told the bytes that the proof reads.
// Errors: AlreadyExists; NoSpace before anything is written.
Result<std::unique_ptr<WeightSink>> MakeSafetensorsSink(
    FileSystem& fs, const std::string& directory, ForeignModel model,
    const std::vector<StrippedWeight>& weights, uint64_t max_file_bytes, SafetensorsMetadata provenance,
    const FileCopies& copies, const StepBuilderOptions& writer, std::function<void(uint64_t)> progress);

}  // namespace cairn
