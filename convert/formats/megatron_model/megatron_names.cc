#include "convert/formats/megatron_model/megatron_names.h"

#include <charconv>

#include "convert/formats/megatron_model/megatron_modules.h"

namespace cairn {
namespace {

constexpr std::string_view kWrappers[] = {"module.",
                                          "model.",
                                          "language_model.",
                                          "embedding.",
                                          "encoder.",
                                          "transformer.",
                                          "decoder.",
                                          "tied_modules.embed.",
                                          "word_embeddings_for_head."};

void StripWrappers(std::string_view& name) {
  for (bool stripped = true; stripped;) {
    stripped = false;
    for (const std::string_view wrapper : kWrappers) {
      if (!name.starts_with(wrapper)) continue;
      name.remove_prefix(wrapper.size());
      stripped = true;
    }
  }
}

}  // namespace

std::optional<MegatronName> ParseMegatronName(std::string_view name) {
  if (name.ends_with("word_embeddings_for_head.weight"))
    return MegatronName{kBeforeLayers, "word_embeddings.weight"};
  StripWrappers(name);
  MegatronName found{kBeforeLayers, ""};
  constexpr std::string_view kLayers = "layers.";
  if (name.starts_with(kLayers)) {
    const char* first = name.data() + kLayers.size();
    const char* last = name.data() + name.size();
    const auto [end, error] = std::from_chars(first, last, found.layer);
    if (error != std::errc() || end == last || *end != '.' || found.layer < 0) return std::nullopt;
    name.remove_prefix(static_cast<size_t>(end + 1 - name.data()));
  } else if (name.starts_with("final_") || name.starts_with("lm_head") || name.starts_with("output_layer")) {
    found.layer = kAfterLayers;
  }
  found.name = name;
  if (!FindMegatronParameter(found.name).module) return std::nullopt;
  return found;
}

bool IsMegatronBuffer(std::string_view name) {
  return name.ends_with(kExtraState) || name.ends_with(".inv_freq");
}

}  // namespace cairn
