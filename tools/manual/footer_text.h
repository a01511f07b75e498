// The parts of the text that --help prints below its options.
#pragma once

#include <string>
#include <vector>

#include "tools/manual/command.h"

namespace cairn::manual {

struct FooterText {
  std::vector<TextBlock> notes;
  std::vector<std::string> examples;
  std::vector<ExitStatus> exit_statuses;
};

// Paragraphs are parted by blank lines; lines that begin with a blank keep their breaks. The paragraphs that
// begin "Example:" and "Exit status:" are HelpFooter's (exit_code.h).
FooterText ParseFooter(const std::string& footer);

}  // namespace cairn::manual
