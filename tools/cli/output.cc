#include "tools/cli/output.h"

#include <unistd.h>

#include <cstdio>

#include "ckpt/step/verify.h"
#include "tools/cli/printable.h"

namespace cairn {
namespace {

bool json_was_printed = false;
bool notes_are_quiet = false;

}  // namespace

void PrintJson(const nlohmann::ordered_json& value) {
  json_was_printed = true;
  fmt::print("{}\n", value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

bool JsonWasPrinted() { return json_was_printed; }

void PrintNoNotes() { notes_are_quiet = true; }
bool NotesAreQuiet() { return notes_are_quiet; }

void PrintProblem(const std::string& message) {
  const bool is_note = message.starts_with("note: ");
  if (is_note && notes_are_quiet) return;
  std::fflush(stdout);  // keeps the lines in order if both streams go to one place
  std::fputs(fmt::format("{} {}\n", Painted("cairn:", is_note ? Tone::kNote : Tone::kBad, STDERR_FILENO),
                         ShortLine(message))
                 .c_str(),
             stderr);  // fmt::print might throw
}

nlohmann::ordered_json ToJson(const std::vector<Problem>& problems) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Problem& p : problems)
    list.push_back({{"file", p.file},
                    {"offset", p.offset ? nlohmann::ordered_json(*p.offset) : nullptr},
                    {"tensor", p.tensor},
                    {"what", p.what}});
  return list;
}

}  // namespace cairn
