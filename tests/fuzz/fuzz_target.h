// A fuzz target: a parser of untrusted files, its seeds, and the words of its
// format.
//
// Each is one program. With clang (the preset "fuzz") libFuzzer drives it; elsewhere driver.cc does, which
// mutates the seeds without looking at coverage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Whole inputs, as real programs write them, and known attacks.
std::vector<std::string> FuzzSeeds();
// Words that mutations insert.
std::vector<std::string> FuzzWords();

// Ends the program with the line of the failed check.
inline void FuzzCheck(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace cairn

// Must return for any bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
