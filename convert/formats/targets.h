// The formats of other training systems that can be written, each a plan of files.
//
// A format is one row of a table: its name and what plans it. To add one, write
// convert/formats/SYSTEM/NAME_writer.h with a Plan function and add its row in targets.cc. Its reader
// (convert/formats) proves what was written.
#pragma once

#include <span>
#include <string_view>

#include "convert/foreign/target_format.h"

namespace cairn {

std::span<const TargetFormat> TargetFormats();
// Null where there is none of this name.
const TargetFormat* FindTargetFormat(std::string_view name);

}  // namespace cairn
