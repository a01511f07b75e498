// Seeds from names and numbers: the same on every topology, and unrelated for neighbouring inputs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace cairn {

// SplitMix64's number i of the stream that starts at 0 is Mix(kSplitMixStep * i).
inline constexpr uint64_t kSplitMixStep = 0x9E3779B97F4A7C15u;

// The finaliser of SplitMix64 (Steele et al. 2014): a bijection whose outputs look random.
constexpr uint64_t Mix(uint64_t x) {
  x += kSplitMixStep;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr uint64_t HashNumbers(std::initializer_list<uint64_t> numbers) {
  uint64_t hash = 0;
  for (uint64_t number : numbers) hash = Mix(hash ^ number);
  return hash;
}

constexpr uint64_t HashName(std::string_view name) {
  uint64_t hash = 0;
  for (char c : name) hash = Mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace cairn
