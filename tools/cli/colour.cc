#include "tools/cli/colour.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace cairn {
namespace {

bool ShowsColour(int descriptor) {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb" && ::isatty(descriptor) == 1;
}

}  // namespace

std::string Painted(std::string text, Tone tone, int descriptor) {
  if (tone == Tone::kPlain || !ShowsColour(descriptor)) return text;
  const int code = tone == Tone::kGood ? 32 : tone == Tone::kNote ? 33 : 31;
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

}  // namespace cairn
