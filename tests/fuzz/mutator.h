// Changes inputs at random, without looking at what they do: bytes, words of the format, numbers at an edge,
// ranges that are doubled, dropped or taken from another seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace cairn {

class Mutator {
 public:
  static constexpr size_t kMaxInput = 1 << 18;

  Mutator(uint64_t seed, std::vector<std::string> seeds, std::vector<std::string> words)
      : random_(seed), seeds_(std::move(seeds)), words_(std::move(words)) {}

  // One of the seeds, changed up to eight times. Requires a seed.
  std::string Next();
  void Mutate(std::string& input);

 private:
  size_t Below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  char Byte() { return static_cast<char>(random_()); }
  void Number(std::string& input, size_t at);
  void Splice(std::string& input, size_t at);

  std::mt19937_64 random_;
  std::vector<std::string> seeds_;
  std::vector<std::string> words_;
};

}  // namespace cairn
