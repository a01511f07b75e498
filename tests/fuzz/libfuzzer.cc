// Additions to libFuzzer: the words of the format among its mutations, and the seeds that a
// target makes as files (`fuzz_NAME --write-seeds DIRECTORY`).
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--write-seeds") return 0;
  size_t i = 0;
  for (const std::string& seed : cairn::FuzzSeeds())
    std::ofstream((*argv)[2] + ("/seed-" + std::to_string(i++)), std::ios::binary) << seed;
  std::exit(0);
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (seed % 4 != 0) return LLVMFuzzerMutate(data, size, max_size);
  static cairn::Mutator mutator(seed, cairn::FuzzSeeds(), cairn::FuzzWords());
  std::string input(reinterpret_cast<const char*>(data), size);
  mutator.Mutate(input);
  size = std::min(input.size(), max_size);
  std::memcpy(data, input.data(), size);
  return size;
}
