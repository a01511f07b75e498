// A table's module is a stored tensor that one or more canonical parameters fill; or many, one for each
// expert. Each module is expanded for each layer that has it, in two orders: as the other system's state dict
// lists the tensors, and as the trainer lists the parameters. A transposed tensor is laid out first and
// transposed at the end.

#include "ckpt/families/expand.h"

#include <algorithm>
#include <numeric>

#include "ckpt/base/first_axis.h"
#include "ckpt/model/manifest.h"

namespace cairn {
namespace {

using nlohmann::json;

std::string Numbered(std::string name, std::string_view sign, uint64_t number) {
  const size_t at = name.find(sign);
  return at == std::string::npos ? name : name.replace(at, sign.size(), std::to_string(number));
}

bool IsMixture(const Model& model, int layer) {
  const json& dense = model.dense_layers;
  return !model.num_experts.is_null() &&
         !(dense.is_array() && std::ranges::find(dense, json(layer)) != dense.end());
}

class Expander {
 public:
  Expander(const Family& family, const Model& model, const ModelShape& shape, StoredForm form)
      : family_(family), model_(model), shape_(shape), form_(form) {}

  ExpandedModel Run() {
    ListTensors(InStateDictOrder());
    result_.weights = result_.tensors.size();
    std::vector<const Module*> states;
    if (form_ == StoredForm::kTorchtitan)
      for (const Module& module : family_.states_in_torchtitan) states.push_back(&module);
    ListTensors(states);
    ForEachModule(InTrainerOrder(), [&](const Module& module, bool bias, int layer) {
      for (ParameterSpec& spec : SpecsOf(module, bias, layer)) result_.parameters.push_back(std::move(spec));
    });
    return std::move(result_);
  }

 private:
  void ListTensors(const std::vector<const Module*>& modules) {
    ForEachModule(modules, [&](const Module& module, bool bias, int layer) {
      if (!module.by_expert()) {
        ListExperts();
        return result_.tensors.push_back(Stored(module, bias, layer));
      }
      for (uint64_t e = 0; e < static_cast<uint64_t>(shape_.experts); ++e)
        of_experts_.emplace_back(e, Stored(module, bias, layer, e));
    });
    ListExperts();
  }

  ForeignTensor Stored(const Module& module, bool bias, int layer,
                       std::optional<uint64_t> expert = {}) const {
    std::string name = Numbered(module.Name(bias), kLayerNumber, static_cast<uint64_t>(layer));
    return StoredTensor(Numbered(std::move(name), kExpertNumber, expert.value_or(0)),
                        SpecsOf(module, bias, layer), module.packing, Groups(module), expert);
  }

  uint64_t Groups(const Module& module) const {
    const auto size = std::ranges::find(ModelFields(), module.groups, &ModelField::name)->size;
    return static_cast<uint64_t>(std::max<int64_t>(1, shape_.*size));
  }

  // State dicts list all tensors of an expert, then those of the next.
  void ListExperts() {
    std::ranges::stable_sort(of_experts_, {}, [](const auto& numbered) { return numbered.first; });
    for (auto& [expert, tensor] : of_experts_) result_.tensors.push_back(std::move(tensor));
    of_experts_.clear();
  }

  const Module* InForm(const Module& module) const {
    if (form_ == StoredForm::kFiles) return &module;
    const bool titan = form_ == StoredForm::kTorchtitan;
    for (const Module& other : titan ? family_.in_torchtitan : family_.in_memory)
      if (std::ranges::find(other.canonical, module.canonical[0]) != other.canonical.end()) return &other;
    return &module;
  }

  std::vector<const Module*> InStateDictOrder() const {
    std::vector<const Module*> modules;
    for (const Module& module : family_.modules)
      if (const Module* stored = InForm(module); std::ranges::find(modules, stored) == modules.end())
        modules.push_back(stored);
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
    for (const int part : PartsOf(shape_)) {
      const int layer = IsInLayers(part) ? part : 0;
      for (const Module* module : modules) {
        if (FindCanonicalModule(module->canonical[0])->place != PlaceOf(part) ||
            !Holds(module->when, model_, layer))
          continue;
        if (Holds(module->weight, model_, layer)) visit(*module, false, layer);
        if (Holds(module->bias, model_, layer)) visit(*module, true, layer);
      }
    }
  }

  std::vector<ParameterSpec> SpecsOf(const Module& module, bool bias, int layer) const {
    std::vector<ParameterSpec> specs;
    for (const std::string& name : module.canonical)
      specs.push_back(SpecOf(*FindCanonicalModule(name), bias, layer, shape_));
    return specs;
  }

  const Family& family_;
  const Model& model_;
  const ModelShape& shape_;
  const StoredForm form_;
  std::vector<std::pair<uint64_t, ForeignTensor>> of_experts_;  // by expert, of a layer
  ExpandedModel result_;
};

// [in, rows, module], seen so; a bias is [rows, module].
ForeignTensor Alternating(std::string name, const std::vector<ParameterSpec>& specs) {
  const Dims& shape = specs[0].shape;
  const bool matrix = specs[0].is_matrix();
  ForeignTensor tensor{std::move(name), matrix ? LastTwoSwapped(shape) : shape, {}};
  tensor.seen = tensor.shape;
  tensor.seen.push_back(specs.size());
  tensor.shape[shape.rank() - 1] *= specs.size();
  Axes axes = kSameAxes;  // of what is seen: the module, which the parameter does not have, and then its own
  std::rotate(axes.begin(), axes.begin() + shape.rank(), axes.begin() + shape.rank() + 1);
  if (matrix) std::swap(axes[1], axes[2]);
  for (uint64_t i = 0; i < specs.size(); ++i) {
    Box turn = Box::Whole(tensor.seen);
    turn.offset[shape.rank()] = i;
    turn.extent[shape.rank()] = 1;
    tensor.parts.push_back({{Box::Whole(shape), turn, axes}, specs[i].name});
  }
  return tensor;
}

// `modules` are those of a form other than the files'. A name outside the layers may be in the files, too:
// "norm.weight".
bool HasAnyOf(const TensorTable& stored, const std::vector<Module>& modules, const Family& family) {
  return std::ranges::any_of(modules, [&](const Module& module) {
    const std::string name = module.Name(/*of_bias=*/false);
    const auto in_files = [&](const Module& other) { return other.Name(/*of_bias=*/false).ends_with(name); };
    if (name.find(kLayerNumber) == std::string::npos && std::ranges::any_of(family.modules, in_files))
      return false;
    const std::string end = name.substr(name.find('}') + 1);  // after the layer, or all of it
    return std::ranges::any_of(stored.tensors,
                               [&](const TensorEntry& tensor) { return tensor.spec.name.ends_with(end); });
  });
}

}  // namespace

ForeignTensor StoredTensor(std::string name, const std::vector<ParameterSpec>& specs, Packing packing,
                           uint64_t groups, std::optional<uint64_t> expert) {
  if (expert) {
    std::vector<ParameterSpec> of_one = specs;
    for (ParameterSpec& spec : of_one) {
      spec.shape = WithoutFirst(spec.shape);
      spec.of_experts = false;
    }
    ForeignTensor tensor = StoredTensor(std::move(name), of_one, packing, groups);
    for (ForeignPart& part : tensor.parts)
      part.box = {WithFirst(*expert, part.box.offset), WithFirst(1, part.box.extent)};
    return tensor;
  }
  if (packing == Packing::kAlternating) return Alternating(std::move(name), specs);
  if (packing != Packing::kGrouped) groups = 1;
  const bool matrix = specs[0].is_matrix();
  ForeignTensor tensor{std::move(name), specs[0].shape, {}};
  const int dim = specs[0].of_experts ? 1 : 0;
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
  if (packing != Packing::kTransposed || !matrix) return tensor;
  tensor.shape = LastTwoSwapped(tensor.shape);
  for (ForeignPart& part : tensor.parts) part = {part.Transposed(), std::move(part.parameter)};
  return tensor;
}

std::map<std::string, std::string> CopiesIn(const Family& family, const Model& model) {
  std::map<std::string, std::string> copies;
  const int64_t layers = IntOf(model.num_layers), mtp = IntOf(model.mtp_layers);
  for (const auto& [name, canonical] : family.copies)
    for (int64_t layer = layers; layer < layers + mtp; ++layer)
      copies.emplace(Numbered(name, kLayerNumber, static_cast<uint64_t>(layer)) + ".weight",
                     canonical + ".weight");
  return copies;
}

bool Holds(const std::string& condition, const Model& model, int layer) {
  if (condition == kAlways) return true;
  if (condition == kNever) return false;
  if (condition[0] == '!') return !Holds(condition.substr(1), model, layer);
  if (condition == kMixture) return IsMixture(model, layer);
  if (const json& types = model.layer_types; IsMixer(condition))
    return types.is_array() && std::cmp_less(layer, types.size()) && types[layer] == condition;
  if (condition == kMtp) return layer >= IntOf(model.num_layers);
  return IsOn(model.Get(condition));
}

StoredForm FormOf(const TensorTable& stored, const Family& family) {
  if (HasAnyOf(stored, family.in_memory, family)) return StoredForm::kMemory;
  return HasAnyOf(stored, family.in_torchtitan, family) ? StoredForm::kTorchtitan : StoredForm::kFiles;
}

Result<ExpandedModel> Expand(const Family& family, const Model& model, StoredForm form) {
  CAIRN_ASSIGN_OR_RETURN(ModelShape shape, ReadShape(model));
  const bool mixture = std::ranges::find(family.modules, kMixture, &Module::when) != family.modules.end();
  if (mixture && shape.experts == 0) return InvalidArgument("the model's num_experts is missing");
  shape.positions = std::max<int64_t>(1, shape.positions);
  return Expander(family, model, shape, form).Run();
}

Result<DecoderModules> ModulesOf(const Family& family, Model model) {
  if (model.dense_layers.empty() && !HasMixers(model)) model.num_layers = 1;  // all layers are alike
  for (const ModelField& field : ModelFields()) {
    const bool counts_layers = field.size == &ModelShape::layers || field.size == &ModelShape::mtp_layers;
    if (field.size == nullptr || counts_layers) continue;
    if (json& size = model.*field.value; field.required || !size.is_null()) size = 1;
  }
  CAIRN_ASSIGN_OR_RETURN(const ExpandedModel expanded, Expand(family, model));
  std::set<std::string_view> names;
  for (const ParameterSpec& spec : expanded.parameters) names.insert(spec.name);
  return DecoderModules::Among(names);
}

}  // namespace cairn
