// The output of verbs: facts as JSON on stdout, problems as one line each on stderr.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace cairn {

struct Problem;

// Names of files may hold any bytes; those that are not UTF-8 are replaced.
void PrintJson(const nlohmann::ordered_json& value);
// True once PrintJson was called: a failure after that must not add to what a program may be reading.
bool JsonWasPrinted();

// Suppresses messages that begin with "note: " (--quiet).
void PrintNoNotes();
bool NotesAreQuiet();

// "cairn: MESSAGE"
void PrintProblem(const std::string& message);

nlohmann::ordered_json ToJson(const std::vector<Problem>& problems);

}  // namespace cairn
