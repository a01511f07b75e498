// Flags of Megatron-LM and Megatron-DeepSpeed that only choose between implementations of the same training,
// or ask for behaviour that is always on here. A command line may have them; the log explains once why they
// have no effect.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace CLI {
class App;
}

namespace cairn {

struct IgnoredFlag {
  std::string_view name;
  std::string_view values;  // "": a switch; "*": any value; "*...": any number of them; else those with which
                            // it does nothing, as "a|b"
  std::string_view reason;
};
std::span<const IgnoredFlag> IgnoredFlags();

// Lets `app` accept the ignored flags without listing them in its help.
void DeclareIgnoredFlags(CLI::App& app);

// The note for `flag` with these values: "--data-impl has no effect here: why". Errors: InvalidArgument for a
// value that would have had an effect.
Result<std::string> NoteFor(const IgnoredFlag& flag, const std::vector<std::string>& values);

// After parsing: the note on each that was given. Errors: those of NoteFor.
Result<std::vector<std::string>> NotesOnIgnoredFlags(const CLI::App& app);

}  // namespace cairn
