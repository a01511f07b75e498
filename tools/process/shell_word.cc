#include "tools/process/shell_word.h"

namespace cairn {

std::string ShellQuoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') word.append("'\\'");
    word.push_back(c);
  }
  word.push_back('\'');
  return word;
}

std::string ShellWord(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                          "_-./:=@,+") == text.npos;
  return plain ? text : ShellQuoted(text);
}

}  // namespace cairn
