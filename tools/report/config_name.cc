#include "tools/report/config_name.h"

#include <regex>

#include "tools/report/config_text.h"
#include "tools/report/numbers.h"

namespace cairn {

std::string_view StemOf(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  if (const size_t slash = path.rfind('/'); slash != path.npos) path.remove_prefix(slash + 1);
  for (const std::string_view suffix : {".out", ".log", ".txt", ".err", ".slurm", ".sbatch", ".sh"})
    if (path.size() > suffix.size() && SameWord(path.substr(path.size() - suffix.size()), suffix))
      return path.substr(0, path.size() - suffix.size());
  return path;
}

RunConfig ConfigFromName(std::string_view path) {
  // A fraction has letters behind it: the number of "gas-512.12345.out" is 512. Of "ds-61B" the pair is 61B.
  const std::string number = R"((\d+(?:\.\d+(?=[A-Za-z]))?))", no_letters = R"((?![A-Za-z\d]|\.\d+[A-Za-z]))";
  static const std::regex kPairs("([A-Za-z]+)(?:" + number + "|[-_=]" + number + no_letters + ")|" + number +
                                 "([A-Za-z]+)");
  const std::string_view name = StemOf(path).substr(0, 500);
  RunConfig config;
  for (std::cregex_iterator pair(name.data(), name.data() + name.size(), kPairs), end; pair != end; ++pair) {
    const auto text = [&](size_t group) {
      return std::string_view((*pair)[group].first, static_cast<size_t>(pair->length(group)));
    };
    const bool number_first = (*pair)[5].matched;
    const std::string_view word = text(number_first ? 5 : 1);
    const ConfigCount* count = CountOfWord(word);
    const bool ends = pair->suffix().length() == 0 || !IsDigit(*pair->suffix().first);
    const double value = number_first ? NumberOf(text(4)) : 0;
    if (ends && (SameWord(word, "b") || SameWord(word, "m")) && !config.size_b && value > 0)
      config.size_b = SameWord(word, "b") ? value : value / 1000;
    else if (count &&
             (!number_first || count->field == &RunConfig::gpus || count->field == &RunConfig::nodes))
      TakeField(count->name, text(number_first ? 4 : (*pair)[2].matched ? 2 : 3), config);
  }
  return config;
}

}  // namespace cairn
