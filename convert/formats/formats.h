// The formats of other systems that can be read, and which of them a path holds.
//
// A format is one row of a table: how its files are recognised and how they are opened. To add one, write
// convert/formats/SYSTEM/NAME.h with an Open function and add its row in formats.cc. A directory may hold two
// checkpoints: the Trainer of transformers writes model.safetensors beside DeepSpeed's files. Recognise()
// decides which one is read, for every verb.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "convert/foreign/format.h"

namespace cairn {

// All that can be read, the most particular first.
std::span<const Format> Formats();

struct Recognised {
  const Format* format = nullptr;
  std::vector<std::string> notes;  // other checkpoints in the same place, which are not read
};

// A training is read before weights for use. Errors: NotFound if no format recognises `path`, naming those
// there are; NotSupported naming a format that is not read; InvalidArgument if it holds two trainings, naming
// both.
Result<Recognised> Recognise(FileSystem& fs, const std::string& path);

// In the format that `options` name, else in the recognised one. Errors: those of Recognise() and
// Format::open.
Result<std::unique_ptr<ForeignSource>> OpenForeign(FileSystem& fs, const std::string& path,
                                                   const OpenOptions& options = {});

}  // namespace cairn
