#include "convert/formats/megatron_model/megatron_names.h"

#include <cstring>

#include "ckpt/base/parse_number.h"
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

// Takes off what a layer of multi-token prediction calls the layer inside it. Its own norm has the name of
// the one after all layers.
std::string WithinMtp(std::string_view name) {
  for (const std::string_view inner : {kInsideMtp, std::string_view("mtp_model_layer.")})
    if (name.starts_with(inner)) return std::string(name.substr(inner.size()));
  return name.starts_with("final_layernorm.") ? fmt::format("mtp_{}", name) : std::string(name);
}

}  // namespace

std::optional<MegatronName> ParseMegatronName(std::string_view name, bool mtp) {
  if (name.ends_with("word_embeddings_for_head.weight"))
    return MegatronName{kBeforeLayers, "word_embeddings.weight"};
  StripWrappers(name);
  MegatronName found{kBeforeLayers, ""};
  found.mtp = name.starts_with("mtp.");
  if (found.mtp && !mtp) return std::nullopt;
  if (found.mtp) name.remove_prefix(std::strlen("mtp."));
  constexpr std::string_view kLayers = "layers.";
  if (name.starts_with(kLayers)) {
    name.remove_prefix(kLayers.size());
    found.layer = TakeNumber<int>(name).value_or(-1);
    if (found.layer < 0 || !name.starts_with('.')) return std::nullopt;
    name.remove_prefix(1);
  } else if (name.starts_with("final_") || name.starts_with("lm_head") || name.starts_with("output_layer")) {
    found.layer = kAfterLayers;
  }
  found.name = found.mtp ? WithinMtp(name) : name;
  if (!FindMegatronParameter(found.name).module) return std::nullopt;
  return found;
}

std::optional<MegatronExpert> ParseExpertName(std::string_view name) {
  constexpr std::string_view kExperts = ".mlp.experts.", kLocal = "local_experts.";
  const size_t at = name.find(kExperts);
  if (at == name.npos) return std::nullopt;
  std::string_view rest = name.substr(at + kExperts.size());
  std::string module(rest);
  MegatronExpert found;
  if (rest == "weight1" || rest == "weight2") {
    module = rest == "weight1" ? "linear_fc1.weight" : "linear_fc2.weight";
  } else if (rest.starts_with(kLocal)) {
    rest.remove_prefix(kLocal.size());
    found.expert = TakeNumber<uint64_t>(rest);
    if (!found.expert || !rest.starts_with('.')) return std::nullopt;
    module = rest.substr(1);
  } else {
    const size_t digits = rest.find_last_not_of("0123456789") + 1;
    module.resize(digits);
    std::string_view number = rest.substr(digits);
    found.expert = TakeNumber<uint64_t>(number);
    if (!found.expert) return std::nullopt;
  }
  const auto place =
      ParseMegatronName(fmt::format("{}{}experts.{}", name.substr(0, at), kExperts, module), /*mtp=*/true);
  if (!place || !IsInLayers(place->layer)) return std::nullopt;
  found.name = *place;
  found.is_down = module.starts_with("linear_fc2.");
  return found;
}

bool IsMegatronBuffer(std::string_view name) {
  return name.ends_with(kExtraState) || name.ends_with(".inv_freq");
}

}  // namespace cairn
