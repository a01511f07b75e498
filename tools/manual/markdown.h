// A command's reference page in Markdown, for docs/manual/.
#pragma once

#include <string>

#include "tools/manual/command.h"

namespace cairn::manual {

// The page's file: "archive-run.md"; that of the whole program is "index.md".
std::string MarkdownFile(const Command& command);

std::string MarkdownPage(const Command& command);

// Text in which Markdown and HTML see no markup.
std::string MarkdownText(const std::string& text);

}  // namespace cairn::manual
