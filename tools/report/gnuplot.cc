#include "tools/report/gnuplot.h"

#include "tools/cli/printable.h"
#include "tools/process/child.h"

namespace cairn {
namespace {

// gnuplot echoes the command before its complaint.
std::string Complaint(const std::string& text) {
  size_t at = text.find("line ");
  if (at == text.npos) at = 0;
  return text.substr(at, text.find('\n', at) - at).substr(0, 200);
}

}  // namespace

Result<std::string> RunGnuplot(const std::string& commands) {
  Result<ChildOutcome> outcome = RunChild({"gnuplot"}, commands);
  if (!outcome.ok() && outcome.status().kind() == StatusKind::kNotFound)
    return NotFound("plots need gnuplot, which is not installed: apt install gnuplot-nox");
  if (!outcome.ok()) return outcome.status();
  if (outcome->exit != 0) return IoError("gnuplot failed: {}", Complaint(outcome->err));
  return std::move(outcome->out);
}

std::string GnuplotString(std::string_view text) {
  std::string out = "\"";
  for (const char c : Printable(std::string(text), Lines::kOne))
    if (c != '"' && c != '\\' && c != '`') out += c;
  return out + '"';
}

}  // namespace cairn
