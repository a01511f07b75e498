// Mapper gives every stored tensor a place: the family's table says which tensor of the model holds which
// parameters. Names of files may lack the prefix that a model without its head lacks. Names of a training may
// also begin with what its state dict put before the model's own ("model."); that is taken off, and must be
// the same everywhere: another module may have a tensor of the same ending ("reward.norm.weight"), which
// would fill a place that the model left empty. A state of the stored tensor's shape is cut as its weight is;
// one number counts for each parameter in it; any other shape (Adafactor's rows) wants a tensor that is one
// parameter as it is.

#include "convert/formats/hugging_face/config_mapping.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "ckpt/base/glob.h"
#include "ckpt/base/short_list.h"
#include "ckpt/families/expand.h"
#include "ckpt/families/hugging_face_config.h"
#include "convert/foreign/shared_parameters.h"
#include "convert/formats/hugging_face/name_prefixes.h"

namespace cairn {
namespace {

constexpr const char* kEmbedding = "embedding.word.weight";

class Mapper {
 public:
  Mapper(const TensorTable& stored, const Manifest* training, const ConfigModel& config,
         const ExpandedModel& expanded, StoredForm form, const std::vector<std::string>& allow)
      : stored_(stored),
        training_(training),
        config_(config),
        family_(*config.family),
        base_prefix_(form == StoredForm::kTorchtitan ? "" : family_.base_prefix),
        expanded_(expanded),
        allow_(allow) {
    for (const ParameterSpec& spec : expanded.parameters) number_of_.emplace(spec.name, number_of_.size());
    for (uint32_t i = 0; i < expanded.tensors.size(); ++i) place_of_.emplace(expanded.tensors[i].name, i);
    ListCopies();
    mapped_.catalog.tensors.resize(training ? 0 : number_of_.size());
    if (!training) return;
    optimizers_ = OptimizerPaths(*training);
    one_step_ = training->state.value("one_optimizer_step", nlohmann::json()) == true;
    for (const SecondName& name : SecondNames(*training, stored))
      second_[name.first].push_back(name.spec.name);
  }

  Result<ConfigMapping> Map() {
    if (const Status fits = MapAll(); !fits.ok()) {
      if (!IsOfAnotherHead()) return fits;
      mapped_.own_names = true;
    }
    return std::move(mapped_);
  }

 private:
  Status MapAll() {
    for (uint32_t i = 0; i < stored_.tensors.size(); ++i) Place(i);
    PlaceTwins();
    CAIRN_RETURN_IF_ERROR(CheckPlaces());
    CAIRN_RETURN_IF_ERROR(CheckComplete());
    if (training_ && IsAllowed("optimizer"))
      mapped_.history.push_back("the optimizer's state was left out (--allow optimizer)");
    for (const auto& [where, tensor] : found_) CAIRN_RETURN_IF_ERROR(Cut(where.first, tensor));
    return OkStatus();
  }

  // The meaning of a name in the model, without the prefix of the state dict.
  struct Known {
    size_t prefix = 0;                // characters
    std::optional<uint32_t> place;    // else a buffer, or a copy
    std::optional<uint32_t> copy_of;  // the place of the tensor that the model has once
  };
  const TensorEntry& entry(uint32_t tensor) const { return stored_.tensors[tensor]; }

  static bool IsState(Role role) { return IsOptimizerState(role) && role != Role::kMaster; }

  // `name` is the whole name, as cairn inspect shows it; or "optimizer".
  bool IsAllowed(const std::string& name) const { return FitsAnyGlob(name, allow_); }

  void ListCopies() {
    for (const auto& [name, parameter] : CopiesIn(family_, config_.model))
      copies_.emplace(name, PlaceOf(number_of_.contains(parameter) ? parameter : kEmbedding));
  }

  // The place that the parameter fills first.
  uint32_t PlaceOf(const std::string& parameter) const {
    uint32_t place = 0;
    while (expanded_.tensors[place].parts[0].parameter != parameter) ++place;
    return place;
  }

  // The place of the tensor that this is a copy of: tied models may have one of the embeddings under the name
  // of the output matrix.
  std::optional<uint32_t> CopyOf(const std::string& name) const {
    for (const std::string& full : {name, family_.base_prefix + name})
      if (const auto copy = copies_.find(full); copy != copies_.end()) return copy->second;
    return IsHead(name) ? std::optional(PlaceOf(kEmbedding)) : std::nullopt;
  }

  std::optional<uint32_t> FindPlace(const std::string& name) const {
    auto place = place_of_.find(name);
    if (place == place_of_.end()) place = place_of_.find(base_prefix_ + name);
    return place == place_of_.end() ? std::nullopt : std::optional(place->second);
  }

  bool IsHead(const std::string& name) const {
    const auto is_head = [&](const Module& module) {
      return module.canonical[0] == "output" && name == module.Name(/*of_bias=*/false);
    };
    return std::ranges::any_of(family_.modules, is_head) || std::ranges::any_of(family_.in_memory, is_head);
  }

  // peft puts a module that it adapts, or trains beside it, one level deeper.
  static std::string WithoutAdapter(std::string name) {
    for (const std::string_view wrapper : {".base_layer.", ".original_module."})
      if (const size_t at = name.find(wrapper); at != name.npos) name.erase(at, wrapper.size() - 1);
    return name;
  }

  std::optional<Known> Find(const std::string& name) const {
    for (size_t at = 0;; ++at) {
      const std::string own = WithoutAdapter(name.substr(at));
      const auto place = FindPlace(own);
      const auto copy_of = place ? std::nullopt : CopyOf(own);
      if (place || copy_of || FitsAnyGlob(own, family_.buffers)) return Known{at, place, copy_of};
      at = training_ ? name.find('.', at) : std::string::npos;
      if (at == std::string::npos) return std::nullopt;
    }
  }

  // Its own name, and its names as a shared parameter.
  std::vector<std::string> NamesOf(const std::string& stored) const {
    std::vector<std::string> names = {stored};
    if (const auto second = second_.find(stored); second != second_.end())
      names.insert(names.end(), second->second.begin(), second->second.end());
    return names;
  }

  // Prefers a name with a place.
  std::optional<Known> FindAny(const TensorEntry& stored, NamePrefix& begins) const {
    std::optional<Known> known;
    for (const std::string& name : NamesOf(stored.spec.name)) {
      const auto found = Find(name);
      if (!found || (known && !found->place)) continue;
      known = found;
      begins = BeginOf(name, *found);
      if (found->place) break;
    }
    return known;
  }

  NamePrefix BeginOf(const std::string& name, const Known& known) const {
    const std::string& base = base_prefix_;  // where the names of most modules begin
    NamePrefix begin{name.substr(0, known.prefix), {}};
    if (!known.place || !expanded_.tensors[*known.place].name.starts_with(base)) return begin;
    const bool whole = std::string_view(name).substr(known.prefix).starts_with(base);
    begin.base = begin.prefix + (whole ? base : "");
    return begin;
  }

  void Place(uint32_t tensor) {
    const TensorEntry& stored = entry(tensor);
    if (MayHoldMoments(stored)) {
      if (!IsAllowed("optimizer")) return unknown_states_.push_back(DisplayName(stored));
      return mapped_.left[Fate::kAllowed].push_back(tensor);
    }
    if (IsOpaque(stored.role) || (stored.role == Role::kStep && one_step_))
      return mapped_.left[Fate::kTrainingState].push_back(tensor);
    const bool state = IsState(stored.role);
    NamePrefix begin;
    std::optional<Known> known = FindAny(stored, begin);
    if (known && known->place >= expanded_.weights && !state) known = {};  // the weights have other names
    if (known && known->place && (state || stored.role == Role::kMaster)) trained_.insert(*known->place);
    const bool may_be_left = training_ || !known || known->copy_of;
    if (may_be_left && (IsAllowed(stored.spec.name) || (state && IsAllowed("optimizer")))) {
      if (!state)
        mapped_.history.push_back(fmt::format("import: {} was left out (--allow)", DisplayName(stored)));
      return mapped_.left[Fate::kAllowed].push_back(tensor);
    }
    if (!known && !training_ && FitsAnyGlob(stored.spec.name, family_.beyond)) {
      mapped_.own_names = true;  // if all others have a place
      return;
    }
    if (!known) {
      numbered_ += state && stored.spec.name.find_first_not_of("0123456789") == std::string::npos;
      const bool optimizer = IsBelowAny(stored.spec.name, optimizers_);
      return (optimizer ? unknown_states_ : unknown_).push_back(DisplayName(stored));
    }
    if (!known->place && !known->copy_of) return mapped_.left[Fate::kBuffer].push_back(tensor);
    if (training_) prefixes_.Add(state, known->place, std::move(begin));
    if (known->copy_of) return twins_.push_back({tensor, *known->copy_of});
    const auto [found, added] = found_.try_emplace({*known->place, stored.role}, tensor);
    if (!added)
      doubles_.push_back(fmt::format("{} as {}", DisplayName(entry(found->second)), DisplayName(stored)));
  }

  Status CheckPlaces() const {
    CAIRN_RETURN_IF_ERROR(prefixes_.Check(trained_));
    if (numbered_ > 0 && numbered_ == unknown_.size())
      return InvalidArgument(
          "the optimizer's states are identified by numbers ({}), and no file assigns these to parameters; "
          "save torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(model, optimizer), which "
          "has names; --allow optimizer takes the weights without them",
          ShortList(unknown_));
    const auto adapter = [](const std::string& name) { return name.find(".lora_") != name.npos; };
    if (std::ranges::any_of(unknown_, adapter))
      return InvalidArgument(
          "{} tensors are of an adapter (LoRA): {}; merge it into the model first, or take the base model by "
          "--allow '*lora_*'; without --config all tensors keep their own names",
          std::ranges::count_if(unknown_, adapter), ShortList(unknown_));
    if (!unknown_.empty())
      return InvalidArgument("{} tensors have no place in the model of {}: {}; --allow GLOB leaves them out",
                             unknown_.size(), config_.path, ShortList(unknown_));
    if (!unknown_states_.empty())
      return InvalidArgument(
          "the optimizer's state has no place in a model in this form ({}); --allow optimizer takes the "
          "weights without it",
          ShortList(unknown_states_));
    if (!doubles_.empty())
      return InvalidArgument("{} tensors of the model occur twice: {}{}", doubles_.size(),
                             ShortList(doubles_), training_ ? "; --allow GLOB leaves one of each out" : "");
    return OkStatus();
  }

  Status CheckComplete() const {
    std::vector<std::string> missing;
    std::set<uint64_t> experts;  // those of which a tensor is missing
    for (uint32_t place = 0; place < expanded_.weights; ++place) {
      if (found_.contains({place, Role::kWeight}) || found_.contains({place, Role::kMaster})) continue;
      const ForeignTensor& tensor = expanded_.tensors[place];
      missing.push_back(tensor.name);
      const bool of_one = SpecOf(tensor).of_experts && tensor.shape.rank() < SpecOf(tensor).shape.rank();
      if (of_one) experts.insert(tensor.parts[0].box.offset[0]);
    }
    if (missing.empty()) return OkStatus();
    const uint64_t all = experts.empty() ? 0 : static_cast<uint64_t>(IntOf(config_.model.num_experts));
    return NotFound("{}{} tensors that {} asks for are missing: {}", HoldsExperts(all - experts.size(), all),
                    missing.size(), config_.path, ShortList(missing));
  }

  // "this file holds 6 of 12 experts; ", unless it holds all or none.
  static std::string HoldsExperts(uint64_t held, uint64_t all) {
    return held == 0 || held == all ? "" : fmt::format("this file holds {} of {} experts; ", held, all);
  }

  // A parameter that lies in the tensor.
  const ParameterSpec& SpecOf(const ForeignTensor& tensor) const {
    return expanded_.parameters[number_of_.at(tensor.parts[0].parameter)];
  }

  // LlamaModel, LlamaForSequenceClassification: all other tensors of the family's model exist.
  bool IsOfAnotherHead() const {
    const nlohmann::json classes =
        KeptOfHuggingFace(config_.model, "config").value("architectures", nlohmann::json());
    if (training_ || !classes.is_array() || classes.empty() || classes[0] == family_.class_name) return false;
    for (uint32_t place = 0; place < expanded_.tensors.size(); ++place) {
      const ForeignTensor& wanted = expanded_.tensors[place];
      const auto found = found_.find({place, Role::kWeight});
      const bool fits = found != found_.end() && entry(found->second).spec.shape == wanted.shape;
      if (!fits && !IsHead(wanted.name)) return false;
    }
    return true;
  }

  // A copy must equal its original, or replaces it.
  void PlaceTwins() {
    for (const auto& [twin, original] : twins_) {
      if (copies_.contains(entry(twin).spec.name)) mapped_.copies.push_back(entry(twin).spec.name);
      const auto [found, added] = found_.try_emplace({original, entry(twin).role}, twin);
      if (added) continue;
      mapped_.twins.emplace_back(found->second, twin);
      mapped_.left[Fate::kReplica].push_back(twin);
      mapped_.parameters_of[entry(twin).spec.name] = {expanded_.tensors[original].parts[0].parameter};
    }
  }

  // A weight has the shape of its place; a state may be a number, or anything in place of one parameter.
  Status CheckShape(const ForeignTensor& wanted, const TensorEntry& stored) const {
    const Dims& shape = stored.spec.shape;
    const bool one_parameter = wanted.parts.size() == 1 && !wanted.parts[0].reorders();
    if (shape == wanted.shape || (IsState(stored.role) && (one_parameter || shape.Volume() == 1)))
      return OkStatus();
    if (IsState(stored.role))
      return NotSupported(
          "{} has shape {}, which cannot be cut as {} is; --allow optimizer takes the weights without the "
          "optimizer's state",
          DisplayName(stored), ToString(shape), wanted.name);
    const bool stack = SpecOf(wanted).of_experts && wanted.shape.rank() == SpecOf(wanted).shape.rank() &&
                       shape.rank() == wanted.shape.rank();
    return Corrupt("{}tensor {} has shape {}, {} makes it {}",
                   stack ? HoldsExperts(shape[0], wanted.shape[0]) : "", DisplayName(stored), ToString(shape),
                   config_.path, ToString(wanted.shape));
  }

  // Tensors of several experts may become one, `target`.
  Status CheckShared(uint32_t place, const TensorEntry& target, const TensorEntry& stored,
                     bool as_stored) const {
    if (place >= expanded_.weights)
      return Corrupt("{} occurs twice: {} is a part of it", DisplayName(stored), DisplayName(target));
    if (!as_stored)
      return NotSupported(
          "{} is of one expert, and the experts of {} are one tensor here; --allow optimizer takes the "
          "weights without the optimizer's state",
          DisplayName(stored), target.spec.name);
    if (target.dtype == stored.dtype) return OkStatus();
    return NotSupported("tensor {} has type {}, other experts of {} have {}; convert them to one type",
                        DisplayName(stored), cairn::Name(stored.dtype), target.spec.name,
                        cairn::Name(target.dtype));
  }

  // Makes the parameters that a stored tensor holds.
  Status Cut(uint32_t place, uint32_t tensor) {
    const ForeignTensor& wanted = expanded_.tensors[place];
    const TensorEntry& stored = entry(tensor);
    CAIRN_RETURN_IF_ERROR(CheckShape(wanted, stored));
    const bool as_stored = stored.spec.shape == wanted.shape;
    if (as_stored && wanted.seen.rank() > 0) mapped_.seen.emplace(tensor, wanted.seen);
    std::set<std::string> parameters;
    for (const ForeignPart& part : wanted.parts) {
      const bool first = parameters.insert(part.parameter).second;
      const auto [made, added] = made_.try_emplace({part.parameter, stored.role});
      if (added)
        made->second = AddTensor(part.parameter, stored, as_stored);
      else if (first)
        CAIRN_RETURN_IF_ERROR(CheckShared(place, mapped_.catalog.tensors[made->second], stored, as_stored));
      Name(stored.spec.name, part.parameter);
      if (as_stored)
        mapped_.parts.push_back({part, made->second, tensor});
      else if (first)
        mapped_.parts.push_back(
            {{Box::Whole(stored.spec.shape), Box::Whole(stored.spec.shape)}, made->second, tensor});
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

  // Files have their parameters in the order of the trainer, states follow their weights. Returns its number.
  uint32_t AddTensor(const std::string& parameter, const TensorEntry& stored, bool as_stored) {
    auto& tensors = mapped_.catalog.tensors;
    const uint32_t number = number_of_.at(parameter);
    ParameterSpec spec = expanded_.parameters[number];
    if (!as_stored) {
      spec.shape = stored.spec.shape;
      spec.cuts.clear();
    }
    TensorEntry& tensor = training_ ? tensors.emplace_back() : tensors[number];
    tensor = {std::move(spec), stored.role, stored.dtype};
    return static_cast<uint32_t>(&tensor - tensors.data());
  }

  const TensorTable& stored_;
  const Manifest* const training_;
  const ConfigModel& config_;
  const Family& family_;
  const std::string base_prefix_;
  const ExpandedModel& expanded_;
  const std::vector<std::string>& allow_;
  std::unordered_map<std::string, uint32_t> place_of_;  // by name: a tensor of the model
  bool one_step_ = false;  // the manifest's state has the number that each parameter has
  std::unordered_map<std::string, uint32_t> number_of_;     // of each parameter in the trainer's order
  std::map<std::string, std::vector<std::string>> second_;  // names of shared parameters, by the first
  std::map<std::pair<uint32_t, Role>, uint32_t> found_;     // stored tensor, by place and role
  std::map<std::pair<std::string, Role>, uint32_t> made_;   // tensor of the catalog, by parameter and role
  std::unordered_map<std::string, uint32_t> copies_;        // by name: the place of the original
  std::vector<std::pair<uint32_t, uint32_t>> twins_;  // stored tensors, and the places of their originals
  NamePrefixes prefixes_;
  std::set<uint32_t> trained_;  // places that have a master or a state
  std::vector<std::string> unknown_, unknown_states_, doubles_;
  std::vector<std::string> optimizers_;  // of a file of torch.save (account.h)
  size_t numbered_ = 0;                  // states among the unknown ones whose parameter is a number
  ConfigMapping mapped_;
};

}  // namespace

Result<ConfigMapping> MapByConfig(const TensorTable& stored, const Manifest* training,
                                  const ConfigModel& config, const std::vector<std::string>& allow) {
  CAIRN_ASSIGN_OR_RETURN(const ModelShape shape, ReadShape(config.model));
  if (std::cmp_greater(shape.AllLayers(), stored.tensors.size()))
    return NotFound("{} asks for {} layers, and there are {} tensors", config.path, shape.AllLayers(),
                    stored.tensors.size());
  const StoredForm form = FormOf(stored, *config.family);
  const bool by_expert =
      form == StoredForm::kFiles && std::ranges::any_of(config.family->modules, &Module::by_expert);
  if (by_expert && std::cmp_greater(shape.experts, stored.tensors.size()))
    return NotFound("{} asks for {} experts, and there are {} tensors", config.path, shape.experts,
                    stored.tensors.size());
  CAIRN_ASSIGN_OR_RETURN(const ExpandedModel expanded, Expand(*config.family, config.model, form));
  return Mapper(stored, training, config, expanded, form, allow).Map();
}

void KeepCopies(const ConfigMapping& mapping, Model& model) {
  if (!mapping.copies.empty()) model.rest["hugging_face"][kCopies] = mapping.copies;
}

}  // namespace cairn
