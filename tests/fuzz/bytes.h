// Building blocks of inputs.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

inline std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(i < 8 ? value >> 8 * i : 0);
  return text;
}

inline std::string_view TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// `words`, and those that any JSON text is made of.
inline std::vector<std::string> JsonWords(std::vector<std::string> words) {
  for (const char* word : {"{", "}", "[", "]", ",", ":", "\"", "null", "true", "0", "-1", "0.5", "1e300",
                           "1e400", "18446744073709551616", "\\u0000", "\xff"})
    words.emplace_back(word);
  return words;
}

// `words`, and those that torch's pickles are made of: opcodes, and what is called most.
inline std::vector<std::string> PickleWords(std::vector<std::string> words) {
  constexpr std::string_view kOpcodes =
      "RQ(tuesadl.}])201qhrjbN\x81\x85\x86\x87\x88\x89\x8b\x8e\x8f\x90\x91\x92\x93\x94";
  for (const char opcode : kOpcodes) words.emplace_back(1, opcode);
  for (const char* word : {"\x80\x02", "ctorch._utils\n_rebuild_tensor_v2\n", "ctorch\nFloatStorage\n",
                           "ccollections\nOrderedDict\n", "cbuiltins\neval\n"})
    words.emplace_back(word);
  return words;
}

}  // namespace cairn
