#include "tools/process/shell_word.h"

namespace cairn {

std::string ShellWord(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                          "_-./:=@,+") == text.npos;
  if (plain) return text;
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') word.append("'\\'");
    word.push_back(c);
  }
  return word + '\'';
}

}  // namespace cairn
