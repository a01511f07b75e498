#include "runtime/data/blend_spec.h"

#include <cmath>

#include "ckpt/base/parse_number.h"
#include "ckpt/base/split_text.h"

namespace cairn {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::vector<std::string_view> WordsOf(std::string_view text) {
  std::vector<std::string_view> words;
  for (text = Trim(text); !text.empty(); text = Trim(text)) {
    const size_t end = std::min(text.find_first_of(kSpace), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

std::optional<double> NumberIn(std::string_view text) {
  const auto value = ParseNumber<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

Result<SplitPart> ParseSplitPart(std::string_view text) {
  const std::vector<std::string_view> words = WordsOf(text);
  const auto malformed = [&] {
    return InvalidArgument("\"{}\": expected WEIGHT START:END PREFIX, such as 0.3 0:0.95 wiki", Trim(text));
  };
  if (words.size() != 3) return malformed();
  const size_t colon = words[1].find(':');
  if (colon == std::string_view::npos) return malformed();
  const auto weight = NumberIn(words[0]), begin = NumberIn(words[1].substr(0, colon)),
             end = NumberIn(words[1].substr(colon + 1));
  if (!weight || !begin || !end) return malformed();
  if (*weight < 0) return InvalidArgument("\"{}\": a weight must not be below 0", Trim(text));
  if (*begin < 0 || *begin >= *end || *end > 1)
    return InvalidArgument("\"{}\": START:END must be shares with 0 <= START < END <= 1", Trim(text));
  return SplitPart{*weight, *begin, *end, std::string(words[2])};
}

}  // namespace

Result<DataPath> ParseDataPath(std::span<const std::string> words) {
  if (words.empty()) return InvalidArgument("--data-path names no dataset");
  DataPath path;
  size_t numbers = 0;
  std::vector<double> weights;
  if (words.size() % 2 == 0) {
    for (size_t i = 0; i < words.size(); i += 2) {
      const std::optional<double> weight = NumberIn(words[i]);
      numbers += weight.has_value();
      weights.push_back(weight.value_or(0));
      if (weight && *weight <= 0)
        return InvalidArgument("--data-path: the weight {} of {} must be above 0", words[i], words[i + 1]);
    }
  }
  if (numbers > 0 && numbers < weights.size())
    return InvalidArgument(
        "--data-path: {} of {} datasets have a weight; give WEIGHT PREFIX WEIGHT PREFIX ..., or only "
        "prefixes",
        numbers, weights.size());
  const size_t step = numbers > 0 ? 2 : 1;
  for (size_t i = step - 1; i < words.size(); i += step) path.prefixes.emplace_back(Trim(words[i]));
  if (numbers > 0) path.weights = std::move(weights);
  return path;
}

Result<SplitGroup> ParseSplitGroup(std::string_view text) {
  const size_t colon = text.find(':');
  SplitGroup group;
  if (colon != std::string_view::npos) group.name = Trim(text.substr(0, colon));
  if (group.name.empty() || WordsOf(group.name).size() != 1)
    return InvalidArgument("\"{}\": expected NAME: WEIGHT START:END PREFIX, WEIGHT START:END PREFIX",
                           Trim(text));
  for (const std::string_view words : SplitText(text.substr(colon + 1), ',')) {
    auto part = ParseSplitPart(words);
    if (!part.ok()) return part.status().WithContext(group.name);
    group.parts.push_back(*std::move(part));
  }
  double sum = 0;
  for (const SplitPart& part : group.parts) sum += part.weight;
  if (!(sum > 0)) return InvalidArgument("{}: all weights are 0", group.name);
  return group;
}

Result<std::vector<std::string>> SplitGroupsIn(std::string_view content) {
  std::vector<std::string> groups;
  for (std::string_view rest = Trim(content); !rest.empty(); rest = Trim(rest)) {
    const size_t end = rest.front() == '"' ? rest.find('"', 1) : std::string_view::npos;
    if (end == std::string_view::npos)
      return InvalidArgument("expected \"NAME: WEIGHT START:END PREFIX, ...\" in double quotes, found: {}",
                             rest.substr(0, 60));
    groups.emplace_back(rest.substr(1, end - 1));
    rest.remove_prefix(end + 1);
  }
  if (groups.empty()) return InvalidArgument("it contains no \"NAME: WEIGHT START:END PREFIX, ...\"");
  return groups;
}

}  // namespace cairn
