// NameReader walks the name once and reads pairs: letters and then a number, or a number and then letters.
// "ds-61B" can be read both ways: if letters follow a number after a separator, the number is read again,
// together with these letters.

#include "tools/report/config_name.h"

#include "tools/report/config_text.h"
#include "tools/report/numbers.h"

namespace cairn {
namespace {

bool IsSeparator(char c) { return c == '-' || c == '_' || c == '='; }

class NameReader {
 public:
  explicit NameReader(std::string_view name) : name_(name) {}

  RunConfig Read() {
    while (at_ < name_.size()) {
      if (IsLetter(name_[at_]))
        LettersFirst();
      else if (IsDigit(name_[at_]))
        NumberFirst();
      else
        ++at_;
    }
    return config_;
  }

 private:
  std::string_view Letters() {
    const size_t begin = at_;
    while (at_ < name_.size() && IsLetter(name_[at_])) ++at_;
    return name_.substr(begin, at_ - begin);
  }
  // "512", or "1.3" if digits follow the dot.
  std::string_view Number() {
    const size_t begin = at_;
    while (at_ < name_.size() && IsDigit(name_[at_])) ++at_;
    if (at_ + 1 < name_.size() && name_[at_] == '.' && IsDigit(name_[at_ + 1])) {
      const size_t dot = at_;
      for (++at_; at_ < name_.size() && IsDigit(name_[at_]);) ++at_;
      if (at_ >= name_.size() || !IsLetter(name_[at_])) at_ = dot;  // "gas-512.12345.out"
    }
    return name_.substr(begin, at_ - begin);
  }

  void LettersFirst() {
    const std::string_view word = Letters();
    size_t digit = at_;
    if (digit < name_.size() && IsSeparator(name_[digit])) ++digit;
    if (digit >= name_.size() || !IsDigit(name_[digit])) return;
    const size_t before = at_;
    at_ = digit;
    const std::string_view number = Number();
    const bool is_more = at_ < name_.size() && IsLetter(name_[at_]);
    if (is_more && digit > before)
      at_ = digit;  // "mp-61B": the number is not the word's value; read 61B by itself
    else
      Take(word, number);
  }

  void NumberFirst() {
    const std::string_view number = Number();
    const std::string_view word = Letters();
    const auto value = NumberAt(number);
    if (!value || word.empty()) return;
    const bool ends = at_ >= name_.size() || !IsDigit(name_[at_]);
    if (ends && (SameWord(word, "b") || SameWord(word, "m")) && !config_.size_b && value->value > 0)
      config_.size_b = SameWord(word, "b") ? value->value : value->value / 1000;
    else if (const ConfigCount* count = CountOfWord(word);
             count && (count->field == &RunConfig::gpus || count->field == &RunConfig::nodes))
      Take(word, number);
  }

  void Take(std::string_view word, std::string_view number) {
    if (const ConfigCount* count = CountOfWord(word)) TakeField(count->name, number, config_);
  }

  std::string_view name_;
  size_t at_ = 0;
  RunConfig config_;
};

}  // namespace

std::string_view StemOf(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  if (const size_t slash = path.rfind('/'); slash != path.npos) path.remove_prefix(slash + 1);
  for (const std::string_view suffix : {".out", ".log", ".txt", ".err", ".slurm", ".sbatch", ".sh"})
    if (path.size() > suffix.size() && SameWord(path.substr(path.size() - suffix.size()), suffix))
      return path.substr(0, path.size() - suffix.size());
  return path;
}

RunConfig ConfigFromName(std::string_view path) { return NameReader(StemOf(path).substr(0, 500)).Read(); }

}  // namespace cairn
