// In Megatron's pipelines the keys of a layer file show which layer it is. In other pipelines the optimizer's
// names do: "3.weight", or "tied_modules.embed.weight" for a layer that is used in several places.

#include "convert/formats/deepspeed/pipeline_layers.h"

#include <algorithm>

#include "ckpt/base/parse_number.h"
#include "convert/formats/megatron_model/megatron_names.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

Result<Shapes> ShapesInLayer(FileSystem& fs, const std::string& directory, const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs, directory, name));
  if (!file.root().is(PyKind::kDict)) return Corrupt("{}: it does not hold a state dict", file.path());
  Shapes shapes;
  CAIRN_RETURN_IF_ERROR(ForEachTensor(file.root(), [&](const std::string& name, const TensorRef& tensor) {
                          shapes[name] = tensor.shape;
                          return OkStatus();
                        }).WithContext(file.path()));
  return shapes;
}

// Its names are partly Megatron's: "attention.query_key_value.weight", "norm.weight".
bool IsGptNeox(const std::map<int, Shapes>& layers) {
  bool transformer = false, norm = false;
  for (const auto& [index, shapes] : layers)
    for (const auto& [name, shape] : shapes) {
      transformer |= name == "attention.query_key_value.weight";
      norm |= name.starts_with("norm.");
    }
  return transformer && norm;
}

// If the states have args of Megatron's, a name without a place is an error later.
bool IsMegatron(const std::map<int, Shapes>& layers, const PyValue& root,
                const std::map<int, std::string>& prefixes) {
  bool known = true, transformer = false;
  for (const auto& [index, shapes] : layers) {
    const std::string& prefix = prefixes.at(index);
    transformer |= prefix.starts_with("layers.");
    for (const auto& [name, shape] : shapes)
      known &= IsMegatronBuffer(name) || ParseMegatronName(prefix + name).has_value();
  }
  const PyValue* args = Find(root, "args");
  const bool sized = args && (Find(*args, "num_layers") || Find(*args, "hidden_size"));
  return transformer && (known || sized);
}

// The parameters that the model states of the first tensor parallel ranks name as trained or frozen.
Shapes NamedParameters(const std::vector<TorchFile>& models, int tp) {
  Shapes shapes;
  const auto add = [&](const std::vector<NamedShape>& entries) {
    for (const auto& [name, shape] : entries)
      if (shape) shapes[name] = *shape;
  };
  for (size_t rank = 0; rank < models.size(); rank += static_cast<size_t>(tp)) {
    for (const auto& group : ParamShapesOf(models[rank].root())) add(group);
    add(ShapesIn(FindKind(models[rank].root(), "frozen_param_shapes", PyKind::kDict)));
  }
  return shapes;
}

// The prefix of a layer of an unknown family.
Result<std::string> PrefixOf(int index, const Shapes& layer, const Shapes& parameters) {
  const std::string own = fmt::format("{}.", index);
  constexpr std::string_view kTied = "tied_modules.";
  std::map<std::string, Shapes> tied;  // by prefix: "tied_modules.embed."
  for (const auto& [name, shape] : parameters) {
    if (name.starts_with(own)) return own;
    const size_t dot = name.starts_with(kTied) ? name.find('.', kTied.size()) : name.npos;
    if (dot != name.npos) tied[name.substr(0, dot + 1)][name.substr(dot + 1)] = shape;
  }
  std::vector<std::string> fits;
  for (const auto& [prefix, shapes] : tied)
    if (std::ranges::all_of(shapes, [&](const auto& tensor) {
          const auto found = layer.find(tensor.first);
          return found != layer.end() && found->second == tensor.second;
        }))
      fits.push_back(prefix);
  if (fits.size() > 1)
    return NotSupported("layer {} may be {} or {}; no file says which", index, fits[0], fits[1]);
  return fits.empty() ? own : fits[0];
}

}  // namespace

bool MatchesGptNeox(FileSystem& fs, const std::string& path) {
  if (!MatchesDeepSpeed(fs, path)) return false;
  const auto files = FindDeepSpeedFiles(fs, path);
  constexpr int kFirstTransformer = 2;  // after the embedding, and a layer without parameters
  if (!files.ok() || !files->layers.contains({kFirstTransformer, 0})) return false;
  std::map<int, Shapes> layers;
  const int last = files->layers.rbegin()->first.first;
  for (const int index : {kFirstTransformer, last - 1, last})
    if (const auto file = files->layers.find({index, 0}); file != files->layers.end())
      if (auto shapes = ShapesInLayer(fs, files->directory, file->second); shapes.ok())
        layers[index] = *std::move(shapes);
  return IsGptNeox(layers);
}

std::optional<PipelineName> ParsePipelineName(const std::string& name) {
  PipelineName parsed;
  std::string_view rest = name;
  parsed.layer = TakeNumber<int>(rest).value_or(-1);
  if (parsed.layer < 0 || !rest.starts_with('.')) return std::nullopt;
  parsed.rest = rest.substr(1);
  return parsed;
}

std::map<int, std::string> MegatronPrefixes(const std::map<int, Shapes>& layers) {
  std::map<int, std::string> prefixes;
  size_t transformer = 0;
  for (const auto& [index, shapes] : layers) {
    const bool layer = std::ranges::any_of(
        shapes, [](const auto& s) { return s.first.find("query_key_value") != std::string::npos; });
    prefixes[index] = layer                       ? fmt::format("layers.{}.", transformer++)
                      : shapes.contains("weight") ? "final_layernorm."
                                                  : "";
  }
  return prefixes;
}

Result<PipelineLayers> NameLayers(FileSystem& fs, const DeepSpeedFiles& files,
                                  const std::vector<TorchFile>& models) {
  PipelineLayers found;
  for (const auto& [key, name] : files.layers) found.tp = std::max(found.tp, key.second + 1);
  if (models.size() % static_cast<size_t>(found.tp) != 0)
    return Corrupt("{}: {} model parallel ranks are not a multiple of {} tensor parallel ones",
                   files.directory, models.size(), found.tp);
  std::map<int, Shapes> layers;
  for (const auto& [key, name] : files.layers) {
    if (!files.layers.contains({key.first, found.tp - 1}) || !files.layers.contains({key.first, 0}))
      return NotFound("{}: layer {} does not have a file of each of the {} tensor parallel ranks",
                      files.directory, key.first, found.tp);
    if (key.second != 0) continue;
    CAIRN_ASSIGN_OR_RETURN(layers[key.first], ShapesInLayer(fs, files.directory, name));
  }
  const bool neox = IsGptNeox(layers);
  if (neox && found.tp > 1)
    return NotSupported(
        "{}: GPT-NeoX's layers of {} tensor parallel ranks cannot be joined: each rank has a summand of the "
        "biases of attention.dense and mlp.dense_4h_to_h; its own "
        "tools/ckpts/convert_neox_to_hf.py makes a Hugging Face model",
        files.directory, found.tp);
  found.prefixes = MegatronPrefixes(layers);
  found.megatron = !neox && IsMegatron(layers, models[0].root(), found.prefixes);
  if (found.megatron) return found;
  const Shapes parameters = NamedParameters(models, found.tp);
  for (const auto& [index, shapes] : layers) {
    Result<std::string> prefix = PrefixOf(index, shapes, parameters);
    if (!prefix.ok()) return prefix.status().WithContext(files.directory);
    found.prefixes[index] = *std::move(prefix);
  }
  return found;
}

}  // namespace cairn
