#include "tools/cli/output.h"

#include <cstdio>

#include "tools/cli/json_printed.h"
#include "tools/cli/printable.h"

namespace cairn {
namespace {

bool json_was_printed = false;

}  // namespace

void PrintJson(const nlohmann::ordered_json& value) {
  json_was_printed = true;
  fmt::print("{}\n", value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

bool JsonWasPrinted() { return json_was_printed; }

void PrintProblem(const std::string& message) {
  std::fflush(stdout);  // so that lines come in order where both go to one place
  std::fputs(fmt::format("cairn: {}\n", Printable(message)).c_str(), stderr);  // fmt::print might throw
}

nlohmann::ordered_json ToJson(const std::vector<Problem>& problems) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Problem& p : problems)
    list.push_back({{"file", p.file}, {"offset", p.offset}, {"tensor", p.tensor}, {"what", p.what}});
  return list;
}

}  // namespace cairn
