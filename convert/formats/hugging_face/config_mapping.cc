// Mapper gives every tensor of the source a place: the family's table says which stored tensor of the model
// holds which parameters. Names may begin with what the training's state dict put before the model's own
// ("model."); that is taken off. A state of the stored tensor's shape is cut as its
// weight is; one number counts for each parameter in it; any other shape (Adafactor's rows) wants a tensor
// that is one parameter as it is.

#include "convert/formats/hugging_face/config_mapping.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "ckpt/base/glob.h"
#include "convert/foreign/shared_parameters.h"
#include "convert/stream/block_stream.h"

namespace cairn {
namespace {

constexpr uint64_t kCompareElements = 1 << 20;
constexpr const char* kEmbedding = "embedding.word.weight";

class Mapper {
 public:
  Mapper(CheckpointSource& source, const Architecture& architecture, const ExpandedModel& expanded,
         const OpenOptions& options)
      : source_(source), expanded_(expanded), options_(options), places_(architecture, expanded) {
    one_step_ = source.manifest().state.value("one_optimizer_step", nlohmann::json()) == true;
    for (const ParameterSpec& spec : expanded.parameters) spec_of_.emplace(spec.name, &spec);
    for (const SecondName& name : SecondNames(source)) second_[name.first].push_back(name.spec.name);
  }

  Result<ConfigMapping> Map() {
    const auto& tensors = source_.catalog().tensors;
    for (uint32_t i = 0; i < tensors.size(); ++i) Place(i);
    CAIRN_RETURN_IF_ERROR(CheckPlaces());
    CAIRN_RETURN_IF_ERROR(PlaceTwins());
    CAIRN_RETURN_IF_ERROR(CheckComplete());
    if (IsAllowed("optimizer"))
      mapped_.history.push_back("the optimizer's state was left out (--allow optimizer)");
    for (const auto& [where, tensor] : found_) CAIRN_RETURN_IF_ERROR(Cut(where.first, where.second, tensor));
    return std::move(mapped_);
  }

 private:
  // What a name is of the model, once what the state dict put before it is taken off.
  struct Known {
    size_t prefix = 0;              // characters
    std::optional<uint32_t> place;  // else a buffer, or the head of tied embeddings
    bool head = false;
  };

  const TensorEntry& entry(uint32_t tensor) const { return source_.catalog().tensors[tensor]; }

  static bool IsState(Role role) { return IsOptimizerState(role) && role != Role::kMaster; }

  // Of the whole name, as cairn inspect shows it; or "optimizer".
  bool IsAllowed(const std::string& name) const { return FitsAnyGlob(name, options_.allow); }

  std::optional<Known> Find(const std::string& name) const {
    for (size_t at = 0;; ++at) {
      const std::string own = name.substr(at);
      const auto place = places_.Find(own);
      const bool head = places_.IsHead(own);
      if (place || head || places_.IsBuffer(own)) return Known{at, place, head};
      at = name.find('.', at);
      if (at == std::string::npos) return std::nullopt;
    }
  }

  // Its own, and those that it has as a shared parameter.
  std::vector<std::string> NamesOf(const std::string& stored) const {
    std::vector<std::string> names = {stored};
    if (const auto second = second_.find(stored); second != second_.end())
      names.insert(names.end(), second->second.begin(), second->second.end());
    return names;
  }

  // A place is better than none.
  std::optional<Known> FindAny(const TensorEntry& stored) {
    std::optional<Known> known;
    for (const std::string& name : NamesOf(stored.spec.name)) {
      const auto found = Find(name);
      if (!found || (known && !found->place)) continue;
      known = found;
      if (!found->place) continue;
      prefixes_[IsState(stored.role)].insert(name.substr(0, found->prefix));
      break;
    }
    return known;
  }

  void Place(uint32_t tensor) {
    const TensorEntry& stored = entry(tensor);
    if (IsOpaque(stored.role) || (stored.role == Role::kStep && one_step_))
      return mapped_.left["training_state"].push_back(tensor);
    const bool state = IsState(stored.role);
    if (IsAllowed(stored.spec.name) || (state && IsAllowed("optimizer"))) {
      if (!state)
        mapped_.history.push_back(fmt::format("import: {} was left out (--allow)", DisplayName(stored)));
      return mapped_.left["allowed"].push_back(tensor);
    }
    const std::optional<Known> known = FindAny(stored);
    if (!known) return unknown_.push_back(DisplayName(stored));
    if (!known->place) return (known->head ? twins_ : mapped_.left["buffer"]).push_back(tensor);
    const auto [found, added] = found_.try_emplace({*known->place, stored.role}, tensor);
    if (!added)
      doubles_.push_back(fmt::format("{} as {}", DisplayName(entry(found->second)), DisplayName(stored)));
  }

  // Frozen parameters, which no optimizer names, may have names with a prefix beside others without. Two
  // models have prefixes of which none ends with the other.
  Status CheckPlaces() const {
    for (const std::set<std::string>& prefixes : prefixes_) {
      const auto longest = std::ranges::max_element(prefixes, {}, &std::string::size);
      for (const std::string& prefix : prefixes)
        if (!longest->ends_with(prefix))
          return InvalidArgument("it has several models, behind '{}'; leave out others with --allow GLOB",
                                 fmt::join(prefixes, "', '"));
    }
    if (!unknown_.empty())
      return InvalidArgument("{} tensors have no place in the model of {}: {}; --allow GLOB leaves them out",
                             unknown_.size(), options_.config, SomeOf(unknown_));
    if (!doubles_.empty())
      return InvalidArgument(
          "{} tensors of the model are there twice: {}; --allow GLOB leaves one of each out", doubles_.size(),
          SomeOf(doubles_));
    return OkStatus();
  }

  Status CheckComplete() const {
    std::vector<std::string> missing;
    for (uint32_t place = 0; place < expanded_.tensors.size(); ++place)
      if (!found_.contains({place, Role::kWeight}) && !found_.contains({place, Role::kMaster}))
        missing.push_back(expanded_.tensors[place].name);
    if (missing.empty()) return OkStatus();
    return NotFound("{} tensors that {} asks for are missing: {}", missing.size(), options_.config,
                    SomeOf(missing));
  }

  // A copy of tied embeddings under the output's name: equal to them, or instead of them.
  Status PlaceTwins() {
    for (const uint32_t twin : twins_) {
      const auto [found, added] = found_.try_emplace({EmbeddingPlace(), entry(twin).role}, twin);
      if (added) continue;
      CAIRN_RETURN_IF_ERROR(CompareTwin(found->second, twin));
      mapped_.left["replica"].push_back(twin);
      mapped_.parameters_of[entry(twin).spec.name] = {kEmbedding};
    }
    return OkStatus();
  }

  uint32_t EmbeddingPlace() const {
    uint32_t place = 0;
    while (expanded_.tensors[place].parts[0].parameter != kEmbedding) ++place;
    return place;
  }

  Status CompareTwin(uint32_t first, uint32_t second) {
    const TensorEntry &a = entry(first), &b = entry(second);
    bool equal = a.spec.shape == b.spec.shape && a.dtype == b.dtype;
    std::vector<std::byte> one, other;
    for (BlockCursor cursor(a.spec.shape, kCompareElements); equal && !cursor.done(); cursor.Advance()) {
      one.resize(cursor.box().Volume() * SizeOf(a.dtype));
      other.resize(one.size());
      CAIRN_RETURN_IF_ERROR(source_.ReadBox(first, cursor.box(), one));
      CAIRN_RETURN_IF_ERROR(source_.ReadBox(second, cursor.box(), other));
      equal = std::memcmp(one.data(), other.data(), one.size()) == 0;
    }
    if (equal) return OkStatus();
    return Corrupt("{} differs from {}, though {} ties them; --allow '{}' leaves it out", DisplayName(b),
                   DisplayName(a), options_.config, b.spec.name);
  }

  // Makes the parameters that a stored tensor holds, in one role.
  Status Cut(uint32_t place, Role role, uint32_t tensor) {
    const ForeignTensor& wanted = expanded_.tensors[place];
    const TensorEntry& stored = entry(tensor);
    const bool as_stored = stored.spec.shape == wanted.shape;
    const bool number = stored.spec.shape.Volume() == 1;
    if (!as_stored && !IsState(role))
      return Corrupt("tensor {} has shape {}, {} makes it {}", DisplayName(stored),
                     ToString(stored.spec.shape), options_.config, ToString(wanted.shape));
    if (!as_stored && !number && !IsOneParameter(wanted))
      return NotSupported(
          "{} has shape {}, which cannot be cut as {} is; --allow optimizer takes the weights without the "
          "optimizer's state",
          DisplayName(stored), ToString(stored.spec.shape), wanted.name);
    std::map<std::string, uint32_t> made;
    for (const ForeignPart& part : wanted.parts) {
      auto [parameter, added] = made.try_emplace(part.parameter, mapped_.catalog.tensors.size());
      if (added) AddTensor(part.parameter, role, stored, as_stored);
      Name(stored.spec.name, part.parameter);
      if (as_stored)
        mapped_.parts.push_back({{part.box, part.in_array, part.transpose}, parameter->second, tensor});
      else if (added)
        mapped_.parts.push_back(
            {{Box::Whole(stored.spec.shape), Box::Whole(stored.spec.shape)}, parameter->second, tensor});
    }
    return OkStatus();
  }

  // Under all names that the tensor has.
  void Name(const std::string& stored, const std::string& parameter) {
    for (const std::string& name : NamesOf(stored)) {
      auto& parameters = mapped_.parameters_of[name];
      if (std::ranges::find(parameters, parameter) == parameters.end()) parameters.push_back(parameter);
    }
  }

  static bool IsOneParameter(const ForeignTensor& tensor) {
    return tensor.parts.size() == 1 && !tensor.parts[0].transpose;
  }

  void AddTensor(const std::string& parameter, Role role, const TensorEntry& stored, bool as_stored) {
    ParameterSpec spec = *spec_of_.at(parameter);
    if (!as_stored) {
      spec.shape = stored.spec.shape;
      spec.tp_dim = kReplicated;
      spec.tp_unit = 1;
      spec.pad_multiple = 0;
    }
    mapped_.catalog.tensors.push_back({std::move(spec), role, stored.dtype});
  }

  CheckpointSource& source_;
  const ExpandedModel& expanded_;
  const OpenOptions& options_;
  const ModelPlaces places_;
  bool one_step_ = false;  // the manifest's state has the number that each parameter has
  std::map<std::string, const ParameterSpec*> spec_of_;
  std::map<std::string, std::vector<std::string>> second_;  // names of shared parameters, by the first
  std::map<std::pair<uint32_t, Role>, uint32_t> found_;     // tensor of the source, by place and role
  std::vector<uint32_t> twins_;
  std::array<std::set<std::string>, 2> prefixes_;  // of weights and masters, and of states
  std::vector<std::string> unknown_, doubles_;
  ConfigMapping mapped_;
};

}  // namespace

Result<ConfigMapping> MapByConfig(CheckpointSource& source, const ConfigModel& config,
                                  const OpenOptions& options) {
  if (config.architecture == nullptr)
    return NotSupported("no table knows the model_type of {}; --format safetensors keeps the names",
                        options.config);
  CAIRN_ASSIGN_OR_RETURN(const ModelSizes sizes, ReadSizes(config.model));
  if (sizes.layers > source.catalog().tensors.size())
    return NotFound("{} asks for {} layers, and there are {} tensors", options.config, sizes.layers,
                    source.catalog().tensors.size());
  CAIRN_ASSIGN_OR_RETURN(const ExpandedModel expanded, Expand(*config.architecture, config.model));
  return Mapper(source, *config.architecture, expanded, options).Map();
}

}  // namespace cairn
