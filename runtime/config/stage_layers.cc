// Megatron-DeepSpeed's pipeline is a list of elements: a cast, the embedding, a transposition, the layers,
// another transposition, the norm, and the embedding again as the output matrix.
#include "runtime/config/stage_layers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <regex>

#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/placement.h"
#include "runtime/config/model_spec.h"

namespace cairn {
namespace {

struct PipelineElement {
  const char* name;  // of its class, in Megatron-DeepSpeed
  double parameters = 0;
  bool is_layer = false;
};

std::vector<PipelineElement> ElementsOf(const TrainConfig& config) {
  std::vector<double> layers(config.num_layers);
  double before = 0, norm = 0, output = 0;
  for (const ParameterSpec& spec : GptSpecs(config)) {
    const auto count = static_cast<double>(spec.shape.Volume());
    if (spec.layer == kBeforeLayers)
      before += count;
    else if (spec.layer != kAfterLayers)
      layers[spec.layer] += count;
    else
      (spec.name == "output.weight" ? output : norm) += count;
  }
  std::vector<PipelineElement> elements = {{"<lambda>"}, {"EmbeddingPipe", before}, {"<lambda>"}};
  for (const double count : layers) elements.push_back({"ParallelTransformerLayerPipe", count, true});
  elements.push_back({"<lambda>"});
  elements.push_back({"MixedFusedLayerNorm", norm});
  elements.push_back({"EmbeddingPipe", output > 0 ? output : before});
  return elements;
}

// Parts of equal length, the first ones longer by one.
std::vector<size_t> PartitionUniform(size_t count, size_t parts) {
  std::vector<size_t> bounds(parts + 1);
  for (size_t p = 0; p <= parts; ++p)
    bounds[p] = count <= parts ? std::min(p, count) : p * (count / parts) + std::min(p, count % parts);
  return bounds;
}

Result<std::vector<double>> WeightsOf(const std::vector<PipelineElement>& elements,
                                      const std::string& method) {
  constexpr std::string_view kType = "type:";
  std::vector<double> weights;
  if (method == "parameters") {
    for (const PipelineElement& element : elements) weights.push_back(element.parameters);
    return weights;
  }
  if (!method.starts_with(kType))
    return InvalidArgument("--pp-partition-method is '{}'; it must be uniform, parameters or type:REGEX",
                           method);
  try {
    const std::regex type(method.substr(kType.size()), std::regex::icase);
    for (const PipelineElement& element : elements)
      weights.push_back(std::regex_search(element.name, type) ? 1 : 0);
  } catch (const std::regex_error&) {
    return InvalidArgument(
        "--pp-partition-method is '{}'; the text after 'type:' is not a regular expression", method);
  }
  return weights;
}

Result<std::vector<int>> ByMethod(const TrainConfig& config) {
  const std::vector<PipelineElement> elements = ElementsOf(config);
  const size_t pp = config.pipeline_model_parallel_size;
  std::vector<size_t> bounds = PartitionUniform(elements.size(), pp);
  if (config.pp_partition_method != "uniform") {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<double> weights,
                           WeightsOf(elements, config.pp_partition_method));
    bounds = PartitionBalanced(weights, pp);
  }
  std::vector<int> layers(pp);
  for (size_t stage = 0; stage < pp; ++stage)
    for (size_t i = bounds[stage]; i < bounds[stage + 1]; ++i) layers[stage] += elements[i].is_layer;
  return layers;
}

}  // namespace

// Least difference of the heaviest and the lightest part over all cuts, by dynamic programming over prefixes;
// of equal cuts the last. After deepspeed/runtime/utils.py.
std::vector<size_t> PartitionBalanced(const std::vector<double>& weights, size_t parts) {
  const size_t n = weights.size();
  if (n <= parts) return PartitionUniform(n, parts);
  struct Cut {
    double heaviest = std::numeric_limits<double>::infinity();
    double lightest = std::numeric_limits<double>::infinity();
    double difference = std::numeric_limits<double>::infinity();
    size_t begin = 0;  // of the last part
  };
  std::vector<double> sums(n + 1);
  std::partial_sum(weights.begin(), weights.end(), sums.begin() + 1);
  std::vector<std::vector<Cut>> cuts(n + 1, std::vector<Cut>(parts + 1));  // [of the first i][into j]
  cuts[0][0].heaviest = cuts[0][0].difference = 0;
  for (size_t i = 1; i <= n; ++i)
    for (size_t j = 1; j <= std::min(i, parts); ++j)
      for (size_t k = 0; k < i; ++k) {
        const Cut& rest = cuts[k][j - 1];
        const double heaviest = std::max(rest.heaviest, sums[i] - sums[k]);
        const double lightest = std::min(rest.lightest, sums[i] - sums[k]);
        if (cuts[i][j].difference >= heaviest - lightest)
          cuts[i][j] = {heaviest, lightest, heaviest - lightest, k};
      }
  std::vector<size_t> bounds(parts + 1, n);
  for (size_t j = parts; j > 0; --j) bounds[j - 1] = cuts[bounds[j]][j].begin;
  return bounds;
}

Result<std::vector<int>> StageLayersOf(const TrainConfig& config) {
  std::vector<int> layers(config.layers_per_stage.begin(), config.layers_per_stage.end());
  if (!layers.empty() && !config.pp_partition_method.empty())
    return InvalidArgument("--layers-per-stage and --pp-partition-method exclude each other");
  if (!config.pp_partition_method.empty()) {
    CAIRN_ASSIGN_OR_RETURN(layers, ByMethod(config));
  }
  if (layers.empty()) return layers;
  const int chunks = std::max(1, config.num_virtual_stages_per_pipeline_rank);
  const int parts = config.pipeline_model_parallel_size * chunks;
  if (layers.size() != static_cast<size_t>(parts))
    return InvalidArgument(
        "--layers-per-stage has {} numbers for {}{}; give one per stage or run", layers.size(), parts,
        chunks > 1 ? fmt::format(" runs of layers, {} a pipeline stage", chunks) : " pipeline stages");
  int64_t sum = 0;
  for (const int of_stage : layers) {
    if (of_stage < 1)
      return InvalidArgument("layers per stage {}: each stage needs at least one", fmt::join(layers, " "));
    sum += of_stage;
  }
  if (sum != config.num_layers)
    return InvalidArgument("--layers-per-stage {}: they add up to {}, but the model has {} layers",
                           fmt::join(layers, " "), sum, config.num_layers);
  // An even cut is stated by an empty list, as in checkpoints of earlier trainings.
  if (layers == LayersPerStage(config.num_layers, parts)) layers.clear();
  return layers;
}

}  // namespace cairn
