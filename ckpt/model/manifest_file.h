// The manifest as a file of a step's directory.
#pragma once

#include <string>

#include "ckpt/io/file_system.h"
#include "ckpt/model/manifest.h"

namespace cairn {

// Reads the manifest of the step in `step_dir`; `digest`, if given, becomes the digest of its text.
// Errors name the file: NotFound, IoError, and those of DecodeManifest.
Result<Manifest> ReadManifest(FileSystem& fs, const std::string& step_dir, Digest* digest = nullptr);

}  // namespace cairn
