#include "tools/output.h"

#include <cstdio>

namespace cairn {
namespace {

// Names out of files may hold any bytes: those that a terminal would obey, or that are no UTF-8, become "?".
std::string Printable(std::string text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xc2 ? 0
                          : lead < 0xe0 ? 2
                          : lead < 0xf0 ? 3
                          : lead < 0xf5 ? 4
                                        : 0;
    bool valid = length > 0 && length <= text.size() - i && (lead >= 0x20 || lead == '\n') && lead != 0x7f;
    for (size_t k = 1; valid && k < length; ++k) valid = (static_cast<uint8_t>(text[i + k]) & 0xc0) == 0x80;
    if (!valid) text[i] = '?';
    i += valid ? length : 1;
  }
  return text;
}

}  // namespace

void PrintJson(const nlohmann::ordered_json& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void PrintProblem(const std::string& message) {
  std::fflush(stdout);  // so that lines come in order where both go to one place
  fmt::print(stderr, "cairn: {}\n", Printable(message));
}

nlohmann::ordered_json ToJson(const std::vector<Problem>& problems) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Problem& p : problems)
    list.push_back({{"file", p.file}, {"offset", p.offset}, {"tensor", p.tensor}, {"what", p.what}});
  return list;
}

}  // namespace cairn
