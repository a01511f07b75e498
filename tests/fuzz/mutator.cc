#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <iterator>

namespace cairn {
namespace {

constexpr size_t kLarge = 8 << 10;

}  // namespace

std::string Mutator::Next() {
  // Large ones are slow, and there is no more to change in them.
  size_t choice = Below(seeds_.size());
  for (int i = 0; i < 3 && seeds_[choice].size() > kLarge; ++i) choice = Below(seeds_.size());
  std::string input = seeds_[choice];
  for (size_t k = Below(8) + 1; k > 0; --k) Mutate(input);
  if (input.size() > kMaxInput) input.resize(kMaxInput);
  return input;
}

void Mutator::Mutate(std::string& input) {
  const size_t at = Below(input.size() + 1),
               length = Below(std::min<size_t>(input.size() - std::min(at, input.size()), 64) + 1);
  switch (Below(10)) {
    case 0:
      input.erase(at, length);
      break;
    case 1:
      input.insert(at, input.substr(Below(input.size() + 1), Below(128)));
      break;
    case 2:
      input.insert(at, std::string(Below(64), Byte()));
      break;
    case 3:
      if (at < input.size()) input[at] = Byte();
      break;
    case 4:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << Below(8)));
      break;
    case 5:
      if (!words_.empty()) input.insert(at, words_[Below(words_.size())]);
      break;
    case 6:
      if (!words_.empty()) input.replace(at, length, words_[Below(words_.size())]);
      break;
    case 7:
      Number(input, at);
      break;
    case 8:
      Splice(input, at);
      break;
    default:
      input.resize(at);
  }
}

// A number, or the bytes of one, becomes one at an edge.
void Mutator::Number(std::string& input, size_t at) {
  static constexpr uint64_t kEdges[] = {
      0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~uint64_t{0}};
  const uint64_t edge = kEdges[Below(std::size(kEdges))];
  if (at < input.size() && input[at] >= '0' && input[at] <= '9') {
    size_t end = at;
    while (end < input.size() && input[end] >= '0' && input[end] <= '9') ++end;
    input.replace(at, end - at, std::to_string(edge));
    return;
  }
  const size_t width = size_t{1} << Below(4);
  for (size_t i = 0; i < width && at + i < input.size(); ++i)
    input[at + i] = static_cast<char>(edge >> (8 * i));
}

void Mutator::Splice(std::string& input, size_t at) {
  if (seeds_.empty()) return;
  const std::string& other = seeds_[Below(seeds_.size())];
  input = input.substr(0, at) + other.substr(Below(other.size() + 1));
}

}  // namespace cairn
