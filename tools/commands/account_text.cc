#include "tools/commands/account_text.h"

#include "convert/foreign/account.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"

namespace cairn {
namespace {

constexpr size_t kListedNames = 8;  // --json has all

std::string SizeText(const nlohmann::json& bytes) { return HumanBytes(bytes.get<double>()); }

template <typename Names>
void PrintNames(std::string_view what, const Names& names) {
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kListedNames); ++i)
    list += (i == 0 ? "" : ", ") + std::string(names[i]);
  if (names.size() > kListedNames)
    list += fmt::format(" and {} more (--json lists them)", names.size() - kListedNames);
  if (!names.empty()) PrintLine("{}: {}", what, list);
}

}  // namespace

void PrintAccount(const OpenedSource& source) {
  const nlohmann::json account = AccountOf(source.source());
  if (account.is_null()) return;
  std::string parts;
  for (const auto& [name, part] : account["parts"].items())
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, SizeText(part["bytes"]));
  PrintLine("source: {} in {} storages, all accounted for: {}", SizeText(account["bytes"]),
            account["storages"].get<uint64_t>(), parts);
  PrintNames("in no tensor", account["in_no_tensor"]);
  PrintNames("left behind", source.LeftBehind());
}

}  // namespace cairn
