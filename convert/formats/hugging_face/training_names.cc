#include "convert/formats/hugging_face/training_names.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ckpt/families/families.h"
#include "convert/foreign/replicas.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

class MemoryMapper {
 public:
  MemoryMapper(const TensorTable& canonical, const Manifest& manifest, const ExpandedModel& expanded)
      : canonical_(canonical), manifest_(manifest), expanded_(expanded) {
    for (const ParameterSpec& spec : expanded.parameters) spec_of_.emplace(spec.name, &spec);
  }

  Result<ConfigMapping> Map() {
    ListTensors();
    NoteGroups();
    for (const ForeignTensor& wanted : expanded_.tensors)
      for (const auto& [role, tensors] : tensors_) CAIRN_RETURN_IF_ERROR(Fill(wanted, role, tensors));
    for (const auto& [role, tensors] : tensors_)
      for (const auto& [name, tensor] : tensors)
        if (!used_.contains(tensor))
          return NotSupported("{} has no place among the names of this training",
                              DisplayName(canonical_.tensors[tensor]));
    return std::move(mapped_);
  }

 private:
  using ByName = std::unordered_map<std::string, uint32_t>;

  void ListTensors() {
    const bool one_step = manifest_.state.value("one_optimizer_step", nlohmann::json()) == true;
    for (uint32_t i = 0; i < canonical_.tensors.size(); ++i) {
      const TensorEntry& tensor = canonical_.tensors[i];
      if (IsOpaque(tensor.role) || (one_step && tensor.role == Role::kStep))
        mapped_.left[Fate::kTrainingState].push_back(i);
      else
        tensors_[tensor.role].emplace(tensor.spec.name, i);
    }
  }

  void NoteGroups() {
    const auto groups = manifest_.state.value("param_groups", nlohmann::json::array());
    for (size_t i = 0; i < groups.size(); ++i)
      if (groups[i].is_object() && groups[i].contains(kGroupMembers))
        for (const nlohmann::json& name : groups[i][kGroupMembers])
          if (name.is_string()) group_of_.emplace(name.get<std::string>(), i);
  }

  // The parameters in a tensor, each once.
  std::vector<const ParameterSpec*> ParametersOf(const ForeignTensor& tensor) const {
    std::vector<const ParameterSpec*> parameters;
    for (const ForeignPart& part : tensor.parts) {
      const ParameterSpec* spec = spec_of_.at(part.parameter);
      if (std::ranges::find(parameters, spec) == parameters.end()) parameters.push_back(spec);
    }
    return parameters;
  }

  Status Fill(const ForeignTensor& wanted, Role role, const ByName& tensors) {
    const auto parameters = ParametersOf(wanted);
    std::vector<uint32_t> sources;
    for (const ParameterSpec* parameter : parameters)
      if (const auto found = tensors.find(parameter->name); found != tensors.end())
        sources.push_back(found->second);
    if (sources.empty() && (role != Role::kWeight || HasMaster(*parameters[0]))) return OkStatus();
    if (sources.size() < parameters.size())
      return NotFound("{} of the {} parameters in {} have {}", sources.size(), parameters.size(), wanted.name,
                      Name(role));
    CAIRN_RETURN_IF_ERROR(CheckAlike(wanted, sources));
    used_.insert(sources.begin(), sources.end());
    const bool as_stored = std::ranges::equal(parameters, sources, [this](const auto* spec, uint32_t source) {
      return spec->shape == Entry(source).spec.shape;
    });
    return as_stored ? AddParts(wanted, sources, parameters) : AddOther(wanted, sources, *parameters[0]);
  }

  bool HasMaster(const ParameterSpec& parameter) const {
    const auto masters = tensors_.find(Role::kMaster);
    return masters != tensors_.end() && masters->second.contains(parameter.name);
  }

  const TensorEntry& Entry(uint32_t tensor) const { return canonical_.tensors[tensor]; }

  Status CheckAlike(const ForeignTensor& wanted, const std::vector<uint32_t>& sources) const {
    const TensorEntry& first = Entry(sources[0]);
    for (const uint32_t source : sources) {
      const TensorEntry& other = Entry(source);
      if (other.dtype != first.dtype)
        return NotSupported("{} and {} have two types, and are one tensor, {}", DisplayName(first),
                            DisplayName(other), wanted.name);
      const auto group = group_of_.find(first.spec.name), others = group_of_.find(other.spec.name);
      if (group != group_of_.end() && others != group_of_.end() && group->second != others->second)
        return NotSupported("{} and {} are in two groups of the optimizer, and are one tensor, {}",
                            first.spec.name, other.spec.name, wanted.name);
    }
    return OkStatus();
  }

  uint32_t Add(const ForeignTensor& wanted, const Dims& shape, const std::vector<uint32_t>& sources) {
    const TensorEntry& first = Entry(sources[0]);
    mapped_.catalog.tensors.push_back(
        {{.name = wanted.name, .shape = shape, .layer = first.spec.layer}, first.role, first.dtype});
    for (const uint32_t source : sources) {
      auto& names = mapped_.parameters_of[Entry(source).spec.name];
      if (std::ranges::find(names, wanted.name) == names.end()) names.push_back(wanted.name);
    }
    return static_cast<uint32_t>(mapped_.catalog.tensors.size() - 1);
  }

  Status AddParts(const ForeignTensor& wanted, const std::vector<uint32_t>& sources,
                  const std::vector<const ParameterSpec*>& parameters) {
    const uint32_t tensor = Add(wanted, wanted.shape, sources);
    if (const Dims& seen = wanted.seen; seen.rank() > 0)
      mapped_.made_by_turns.emplace(tensor, seen[seen.rank() - 1]);
    for (const ForeignPart& part : wanted.parts) {
      const auto at = std::ranges::find(parameters, part.parameter, &ParameterSpec::name);
      mapped_.parts.push_back({part.Inverse(), tensor, sources[at - parameters.begin()]});
    }
    return OkStatus();
  }

  // A state of another shape than its parameter: a number, or one whose parameter is stored as it is.
  Status AddOther(const ForeignTensor& wanted, const std::vector<uint32_t>& sources,
                  const ParameterSpec& parameter) {
    const Dims& shape = Entry(sources[0]).spec.shape;
    const bool number = std::ranges::all_of(
        sources, [this](uint32_t source) { return Entry(source).spec.shape.rank() == 0; });
    const bool as_it_is =
        wanted.parts.size() == 1 && !wanted.parts[0].reorders() && wanted.shape == parameter.shape;
    if (!number && !as_it_is)
      return NotSupported(
          "{} has shape {}, and its parameter is a part of {}; --allow optimizer takes the "
          "weights without the optimizer's state",
          DisplayName(Entry(sources[0])), ToString(shape), wanted.name);
    const uint32_t tensor = Add(wanted, shape, sources);
    mapped_.parts.push_back({{Box::Whole(shape), Box::Whole(shape)}, tensor, sources[0]});
    for (size_t i = 1; i < sources.size(); ++i) {
      mapped_.twins.emplace_back(sources[0], sources[i]);
      mapped_.left[Fate::kReplica].push_back(sources[i]);
    }
    return OkStatus();
  }

  const TensorTable& canonical_;
  const Manifest& manifest_;
  const ExpandedModel& expanded_;
  std::unordered_map<std::string, const ParameterSpec*> spec_of_;
  std::map<Role, ByName> tensors_;
  std::unordered_map<std::string, size_t> group_of_;  // of the optimizer, by parameter
  std::set<uint32_t> used_;
  ConfigMapping mapped_;
};

// A state dict has the output matrix of a tied model, too.
void AddTied(const Family& family, const Model& model, nlohmann::json& state) {
  std::string head, embedding;
  for (const Module& module : family.modules) {
    if (module.canonical[0] == "output") head = module.Name(/*of_bias=*/false);
    if (module.canonical[0] == "embedding.word") embedding = module.Name(/*of_bias=*/false);
  }
  if (IsOn(model.tied_embeddings) && !head.empty()) state["shared_params"][head] = embedding;
}

}  // namespace

Result<ConfigMapping> MapToMemory(const TensorTable& canonical, const Manifest& manifest,
                                  const Family& family) {
  CAIRN_ASSIGN_OR_RETURN(const ExpandedModel expanded, Expand(family, manifest.model, StoredForm::kMemory));
  CAIRN_ASSIGN_OR_RETURN(ConfigMapping mapped, MemoryMapper(canonical, manifest, expanded).Map());
  AddTied(family, manifest.model, mapped.state);
  return mapped;
}

Result<std::unique_ptr<ForeignSource>> UnderTrainingNames(std::unique_ptr<CheckpointSource> source) {
  const auto& type = source->manifest().model.architecture;
  if (!type)
    return InvalidArgument("{}: it does not state its model; --config DIR does, with the config.json in DIR",
                           source->name());
  const Family* family = FindFamily(*type);
  if (family == nullptr)
    return NotSupported(
        "{}: no family of transformers computes this model; --names canonical writes canonical names",
        source->name());
  Result<ConfigMapping> mapped = MapToMemory(source->catalog(), source->manifest(), *family);
  if (!mapped.ok()) return mapped.status().WithContext(source->name());
  for (const auto& [first, other] : std::exchange(mapped->twins, {})) {
    CAIRN_ASSIGN_OR_RETURN(const auto distance, Distance(*source, first, other));
    const auto& tensors = source->catalog().tensors;
    if (distance)
      return Corrupt("{}: {} differs from {}, and their parameters are one tensor in transformers",
                     source->name(), DisplayName(tensors[other]), DisplayName(tensors[first]));
  }
  return ReadMapped(std::move(source), *std::move(mapped), ConfigModel(), OpenOptions(),
                    {"export: under the names that transformers has in memory"});
}

}  // namespace cairn
