// The formats of other systems that can be read, and which of them a path holds.
//
// A format is one row of a table: how its files are recognised and how they are opened. To add one, write
// convert/formats/SYSTEM/NAME.h with an Open function and add its row in formats.cc.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "convert/foreign/format.h"

namespace cairn {

// All that can be read, the most particular first.
std::span<const Format> Formats();

// Errors: NotFound where no format recognises `path`, naming those there are; those of Format::open.
Result<std::unique_ptr<ForeignSource>> OpenForeign(FileSystem& fs, const std::string& path,
                                                   const OpenOptions& options = {});

}  // namespace cairn
