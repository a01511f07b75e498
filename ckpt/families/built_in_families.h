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

// sizes_only.json: families that have no table, and that differ from the newer ones. Those have a gated MLP,
// no learned positions and a separate output layer.
std::string_view SizesOnlyText();

}  // namespace cairn
