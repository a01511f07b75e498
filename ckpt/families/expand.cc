// A table's module is a stored tensor that one or more canonical parameters fill. Each module is expanded
// for each layer that has it, in two orders: as the other system's state dict lists the tensors, and as the
// trainer lists the parameters. A transposed tensor is laid out first and transposed at the end.

#include "ckpt/families/expand.h"

#include <algorithm>
#include <numeric>

namespace cairn {
namespace {

using nlohmann::json;

std::string InLayer(const std::string& name, int layer) {
  const size_t at = name.find("{}");
  return at == std::string::npos ? name : name.substr(0, at) + std::to_string(layer) + name.substr(at + 2);
}

class Expander {
 public:
  Expander(const Architecture& architecture, const json& model, const ModelShape& shape)
      : architecture_(architecture), model_(model), shape_(shape) {}

  ExpandedModel Run() {
    ForEachModule(InStateDictOrder(), [&](const Module& module, bool bias, int layer) {
      const auto groups = static_cast<uint64_t>(module.layout == Layout::kGrouped ? shape_.KvHeads() : 1);
      result_.tensors.push_back(StoredTensor(InLayer(module.Name(bias), layer), SpecsOf(module, bias, layer),
                                             groups, module.layout == Layout::kTransposed));
    });
    ForEachModule(InTrainerOrder(), [&](const Module& module, bool bias, int layer) {
      for (ParameterSpec& spec : SpecsOf(module, bias, layer)) result_.parameters.push_back(std::move(spec));
    });
    return std::move(result_);
  }

 private:
  std::vector<const Module*> InStateDictOrder() const {
    std::vector<const Module*> modules;
    for (const Module& module : architecture_.modules) modules.push_back(&module);
    return modules;
  }

  std::vector<const Module*> InTrainerOrder() const {
    std::vector<const Module*> modules = InStateDictOrder();
    std::ranges::stable_sort(modules, {},
                             [](const Module* m) { return FindCanonicalModule(m->canonical[0]); });
    return modules;
  }

  // Visits the modules that the model has: before, in and after its layers.
  template <typename Visit>
  void ForEachModule(const std::vector<const Module*>& modules, const Visit& visit) const {
    const auto visit_all = [&](int place, int layer) {
      for (const Module* module : modules) {
        if (FindCanonicalModule(module->canonical[0])->place != place || !Holds(module->when, model_))
          continue;
        if (Holds(module->weight, model_)) visit(*module, false, layer);
        if (Holds(module->bias, model_)) visit(*module, true, layer);
      }
    };
    visit_all(kBeforeLayers, 0);
    for (int layer = 0; layer < shape_.layers; ++layer) visit_all(0, layer);
    visit_all(kAfterLayers, 0);
  }

  std::vector<ParameterSpec> SpecsOf(const Module& module, bool bias, int layer) const {
    std::vector<ParameterSpec> specs;
    for (const std::string& name : module.canonical)
      specs.push_back(SpecOf(*FindCanonicalModule(name), bias, layer, shape_));
    return specs;
  }

  const Architecture& architecture_;
  const json& model_;
  const ModelShape& shape_;
  ExpandedModel result_;
};

}  // namespace

ForeignTensor StoredTensor(std::string name, const std::vector<ParameterSpec>& specs, uint64_t groups,
                           bool transposed) {
  const bool matrix = specs[0].is_matrix();
  ForeignTensor tensor{std::move(name), specs[0].shape, {}};
  const int dim = tensor.shape.rank() - (matrix ? 2 : 1);
  tensor.shape[dim] = 0;
  for (const ParameterSpec& spec : specs) tensor.shape[dim] += spec.shape[dim];
  uint64_t row = 0;
  for (uint64_t group = 0; group < groups; ++group) {
    for (const ParameterSpec& spec : specs) {
      ForeignPart part{{Box::Whole(spec.shape), Box::Whole(spec.shape)}, spec.name};
      const uint64_t rows = spec.shape[dim] / groups;
      part.box.offset[dim] = group * rows;
      part.in_array.offset[dim] = row;
      part.box.extent[dim] = part.in_array.extent[dim] = rows;
      tensor.parts.push_back(std::move(part));
      row += rows;
    }
  }
  if (!transposed || !matrix) return tensor;
  tensor.shape = LastTwoSwapped(tensor.shape);
  for (ForeignPart& part : tensor.parts) part = {part.Transposed(), std::move(part.parameter)};
  return tensor;
}

bool Holds(const std::string& condition, const json& model) {
  if (condition == kAlways) return true;
  if (condition == kNever) return false;
  if (condition[0] == '!') return !Holds(condition.substr(1), model);
  const auto found = model.find(condition);
  return found != model.end() && found->is_boolean() && found->get<bool>();
}

Result<ExpandedModel> Expand(const Architecture& architecture, const json& model) {
  CAIRN_ASSIGN_OR_RETURN(ModelShape shape, ReadShape(model));
  shape.positions = std::max<int64_t>(1, shape.positions);
  shape.tied = Holds("tied_embeddings", model);
  return Expander(architecture, model, shape).Run();
}

Result<DecoderModules> ModulesOf(const Architecture& architecture, json model) {
  for (const char* size : {"num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
                           "head_dim", "ffn_hidden_size", "vocab_size", "max_position_embeddings"})
    model[size] = 1;  // a layer is enough to see the modules
  CAIRN_ASSIGN_OR_RETURN(const ExpandedModel expanded, Expand(architecture, model));
  std::set<std::string_view> names;
  for (const ParameterSpec& spec : expanded.parameters) names.insert(spec.name);
  return DecoderModules::Among(names);
}

}  // namespace cairn
