#include "convert/families/families.h"

#include <algorithm>

namespace cairn {

std::span<const Architecture> Architectures() {
  static const std::vector<Architecture> all = {Gpt2(),    GptNeoX(), Bloom(), Opt(),  Llama(),
                                                Mistral(), Qwen2(),   Qwen3(), Phi3(), Gemma2()};
  return all;
}

const Architecture* FindArchitecture(const std::string& name) {
  const auto all = Architectures();
  const auto found = std::ranges::find(all, name, &Architecture::name);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace cairn
