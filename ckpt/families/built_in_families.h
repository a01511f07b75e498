// The files of ckpt/families, compiled in.
#pragma once

#include <span>
#include <string_view>

namespace cairn {

struct FamilyText {
  std::string_view file;  // "llama.json"
  std::string_view text;
};

std::span<const FamilyText> BuiltInFamilies();

// sizes_only.json: what families call the sizes, and those that have no table and differ from the newer ones.
// Those have a gated MLP, no learned positions and a separate output layer.
std::string_view SizesOnlyText();

}  // namespace cairn
