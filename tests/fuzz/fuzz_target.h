// A fuzz target: a parser of files that nobody vouches for, what it is fed with first, and the words of its
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

// Whole inputs, as their programs write them, and attacks that are known.
std::vector<std::string> FuzzSeeds();
// What mutations put in.
std::vector<std::string> FuzzWords();

// Ends the program with the line of what was broken.
inline void FuzzCheck(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace cairn

// Takes any bytes, and comes back.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
