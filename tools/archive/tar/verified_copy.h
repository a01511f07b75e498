// Copies a step's file while it is verified: what reaches the sink are the very bytes that met their digests.
#pragma once

#include <functional>
#include <span>

#include "ckpt/step/step_reader.h"

namespace cairn {

using ByteSink = std::function<Status(std::span<const std::byte>)>;

// The bytes of `file` of `step`, in order, to `sink`. A problem is known only once bytes were handed on, so
// the copy counts for nothing before this returns OK. Errors: Corrupt naming file, tensor and offset; the
// sink's own.
Status CopyVerified(FileSystem& fs, const StepReader& step, const ManifestFile& file, const ByteSink& sink);

}  // namespace cairn
