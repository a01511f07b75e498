// The list of all families.
#pragma once

#include <span>

#include "convert/families/family.h"

namespace cairn {

Architecture Gpt2();
Architecture GptNeoX();
Architecture Bloom();
Architecture Opt();
Architecture Llama();
Architecture Mistral();
Architecture Qwen2();
Architecture Qwen3();
Architecture Phi3();
Architecture Gemma2();

std::span<const Architecture> Architectures();

// Null for an unknown name.
const Architecture* FindArchitecture(const std::string& name);

}  // namespace cairn
