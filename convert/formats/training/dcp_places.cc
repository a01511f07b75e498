// Optimizers are found by their param_groups, states by their paths, and weights by the last part of theirs
// unless two share it. States of two optimizers that share names have their optimizer's before them.
#include "convert/formats/training/dcp_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "convert/foreign/dict_entries.h"
#include "convert/formats/training/part_of_state.h"
#include "convert/formats/training/state_places.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr std::string_view kModuleWrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                                "_checkpoint_wrapped_module."};

std::optional<Role> RoleOf(std::string_view key) {
  return key == kDcpPlaces.master ? Role::kMaster : StateRole(key);
}

std::string ModelName(const DcpName& tensor) {
  return WithoutModuleWrappers(tensor.path.empty() ? tensor.name : tensor.path.back());
}

// The dicts of which one entry may be the model: the checkpoint, and those with an optimizer in them.
class Holders {
 public:
  struct Holder {
    std::vector<DictEntry> entries;
    std::map<std::string, size_t, std::less<>> numbers;  // by key
  };
  using Entry = std::pair<const Holder*, size_t>;

  explicit Holders(const DcpOptimizers& optimizers) : holders_{{"", {}}} {
    for (std::string_view start : optimizers.starts)
      while (!start.empty()) {
        start.remove_suffix(1);  // the dot
        const size_t key = start.rfind('.') + 1;
        EntryOf(holders_[std::string(start.substr(0, key))], start.substr(key)).rank = kMaxRank;
        start = start.substr(0, key);
      }
  }

  // The entry that a tensor is in.
  Entry Add(const DcpName& tensor, bool is_trained) {
    auto found = holders_.begin();  // the checkpoint
    for (auto next = found; next != holders_.end(); ++next)
      if (next->first.size() > found->first.size() && tensor.name.starts_with(next->first)) found = next;
    Holder& holder = found->second;
    const auto [key, is_tensor] = KeyOf(tensor, found->first.size());
    DictEntry& entry = EntryOf(holder, key);
    entry.is_tensor = is_tensor;
    entry.rank = std::max(entry.rank, tensor.rank);
    entry.has_parameter |= IsCalledParameter(tensor.name);
    entry.is_trained |= is_trained;
    return {&holder, &entry - holder.entries.data()};
  }

  std::set<Entry> OfTraining() const {
    std::set<Entry> found;
    for (const auto& [text, holder] : holders_) {
      const std::vector<bool> of_training = AreOfTraining(holder.entries);
      for (size_t i = 0; i < of_training.size(); ++i)
        if (of_training[i]) found.emplace(&holder, i);
    }
    return found;
  }

 private:
  static DictEntry& EntryOf(Holder& holder, std::string_view key) {
    const auto [place, added] = holder.numbers.try_emplace(std::string(key), holder.entries.size());
    if (added) holder.entries.push_back({.key = place->first});
    return holder.entries[place->second];
  }

  // The key in its holder, and whether the tensor itself has it. Without a path, keys have no dots.
  static std::pair<std::string_view, bool> KeyOf(const DcpName& tensor, size_t at) {
    size_t begin = 0;
    for (const std::string& part : tensor.path) {
      if (begin >= at) return {part, &part == &tensor.path.back()};
      begin += part.size() + 1;
    }
    const std::string_view rest = std::string_view(tensor.name).substr(at);
    return {rest.substr(0, rest.find('.')), rest.find('.') == rest.npos};
  }

  std::map<std::string, Holder> holders_;  // by the text before their keys, such as "app."
};

// If two weights share a short name, all get their whole names; if two share that as well, the names as
// written.
void TellWeightsApart(std::span<const DcpName> tensors, std::vector<DcpPlace>& places) {
  const auto rename = [&](auto&& name) {
    std::set<std::string> names;
    bool unique = true;
    for (const DcpPlace& place : places)
      if (place.role == Role::kWeight) unique = names.insert(place.parameter).second && unique;
    for (size_t i = 0; !unique && i < places.size(); ++i)
      if (places[i].role == Role::kWeight) places[i].parameter = name(tensors[i].name);
  };
  rename(WithoutModuleWrappers);
  rename([](const std::string& name) { return name; });
}

// Two optimizers with the same state of a parameter of the same name belong to two models.
void TellOptimizersApart(std::vector<DcpPlace>& places) {
  std::map<std::pair<std::string_view, std::optional<Role>>, std::string_view> optimizer_of;
  const auto is_state = [](const DcpPlace& place) { return place.optimizer.has_value(); };
  const bool shared = std::ranges::any_of(places, [&](const DcpPlace& place) {
    if (!is_state(place)) return false;
    const auto [of, added] = optimizer_of.try_emplace({place.parameter, place.role}, *place.optimizer);
    return of->second != *place.optimizer;
  });
  if (!shared) return;
  for (DcpPlace& place : places)
    if (is_state(place)) place.parameter = *place.optimizer + place.parameter;
}

}  // namespace

DcpForm::Keys DcpForm::Weight(const std::string& name) const {
  Keys path = weights;
  path.push_back(name);
  return path;
}

DcpForm::Keys DcpForm::State(const std::string& name, std::string_view state) const {
  Keys path = optimizer;
  if (flat) {
    path.push_back(fmt::format("state.{}.{}", name, state));
    return path;
  }
  path.insert(path.end(), {"state", name});
  const bool one = std::ranges::find(dotted, state) != dotted.end();
  for (size_t dot = state.find('.'); !one && dot != state.npos; dot = state.find('.')) {
    path.emplace_back(state.substr(0, dot));
    state.remove_prefix(dot + 1);
  }
  path.emplace_back(state);
  return path;
}

nlohmann::json ToJson(const DcpForm& form) {
  nlohmann::json json = {{"weights", form.weights}, {"optimizer", form.optimizer}, {"flat", form.flat}};
  if (!form.dotted.empty()) json["dotted"] = form.dotted;
  return json;
}

DcpForm DcpFormOf(const nlohmann::json& state) {
  const auto found = state.find(kDcpForm);
  DcpForm form;
  if (found == state.end() || !found->is_object()) return form;
  const auto read = [&](const char* key, DcpForm::Keys& keys) {
    const nlohmann::json list = found->value(key, nlohmann::json());
    const auto is_text = [](const nlohmann::json& part) { return part.is_string(); };
    if (list.is_array() && std::ranges::all_of(list, is_text)) keys = list.get<DcpForm::Keys>();
  };
  read("weights", form.weights);
  read("optimizer", form.optimizer);
  read("dotted", form.dotted);
  form.flat = found->value("flat", nlohmann::json()) == true;
  return form;
}

std::string WithoutModuleWrappers(std::string name) {
  for (const std::string_view wrapper : kModuleWrappers)
    for (size_t at = 0; (at = name.find(wrapper, at)) != std::string::npos;)
      if (at == 0 || name[at - 1] == '.')
        name.erase(at, wrapper.size());
      else
        ++at;
  return name;
}

DcpOptimizers DcpOptimizersOf(std::span<const DcpName> names) {
  constexpr std::string_view kGroups = "param_groups.";
  DcpOptimizers found;
  for (const DcpName& tensor : names) {
    found.parameters.insert(ModelName(tensor));
    const auto state = std::ranges::find(tensor.path, "state");
    if (tensor.path.end() - state > 2) found.parameters.insert(WithoutModuleWrappers(state[1]));
  }
  for (const DcpName& tensor : names) {
    const size_t at = tensor.name.find(kGroups);
    if (at == tensor.name.npos || (at > 0 && tensor.name[at - 1] != '.')) continue;
    found.starts.insert(tensor.name.substr(0, at));
    const std::string rest = WithoutModuleWrappers(tensor.name.substr(at + kGroups.size()));
    found.parameters.insert(rest.substr(0, found.EndOfParameter(rest)));
  }
  return found;
}

size_t DcpOptimizers::EndOfParameter(std::string_view name) const {
  const size_t last = name.rfind('.');
  for (size_t end = last; end != name.npos && end > 0; end = name.rfind('.', end - 1))
    if (parameters.contains(name.substr(0, end))) return end;
  return last;
}

// "...state.PARAMETER.momentum_buffer", whose parts are a path of the planner's or one text of it. A model
// may have a module called "state", so if no param_groups show which optimizer it is, the ending must be a
// known one.
std::optional<DcpPlace> DcpStatePlace(const std::string& name, const DcpOptimizers& optimizers) {
  constexpr std::string_view kState = "state.";
  const auto below = [&](const std::string& optimizer) -> std::optional<DcpPlace> {
    const std::string rest = WithoutModuleWrappers(name.substr(optimizer.size() + kState.size()));
    const size_t end = optimizers.EndOfParameter(rest);
    if (end == rest.npos || end == 0) return std::nullopt;
    return DcpPlace{rest.substr(0, end), RoleOf(std::string_view(rest).substr(end + 1)), false, optimizer};
  };
  for (const std::string& optimizer : optimizers.starts)
    if (name.starts_with(optimizer + std::string(kState)))
      if (auto place = below(optimizer)) return place;
  const size_t at = name.starts_with(kState) ? 0 : name.find(".state.") + 1;
  if (at == 0 && !name.starts_with(kState)) return std::nullopt;
  auto place = below(name.substr(0, at));
  return place && place->role && place->role->has_number() ? place : std::nullopt;
}

std::map<std::string, std::string> UnreadDcpOptimizers(std::span<const DcpName> tensors,
                                                       std::span<const DcpPlace> places,
                                                       const DcpOptimizers& optimizers) {
  std::set<std::string_view> weights;
  for (const DcpPlace& place : places)
    if (place.role == Role::kWeight) weights.insert(place.parameter);
  std::map<std::string, std::string> unread;
  for (const DcpName& tensor : tensors) {
    const auto place = DcpStatePlace(tensor.name, optimizers);
    if (!place) continue;
    const bool number = place->parameter.find_first_not_of("0123456789") == std::string::npos;
    const bool guessed = number || (place->role && !place->role->has_number());
    if (!place->role || (guessed && !weights.contains(place->parameter)))
      unread.try_emplace(*place->optimizer, tensor.name);
  }
  return unread;
}

bool IsOfDcpOptimizers(const std::string& name, const std::set<std::string>& optimizers) {
  return std::ranges::any_of(optimizers, [&](const std::string& optimizer) {
    return name.starts_with(optimizer + "state.") || name.starts_with(optimizer + "param_groups.");
  });
}

bool IsToldApart(const std::string& name, const std::string& parameter, const DcpOptimizers& optimizers) {
  const auto place = DcpStatePlace(name, optimizers);
  return place && parameter != place->parameter && parameter == *place->optimizer + place->parameter;
}

bool HasUnreadState(const std::vector<DcpPlace>& places, const std::function<Dims(size_t)>& shape_of) {
  TensorTable table;
  const auto is_unknown = [](const DcpPlace& place) { return !place.role && !place.training; };
  if (std::ranges::any_of(places, is_unknown)) return true;
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i].role)
      table.tensors.push_back({{.name = places[i].parameter, .shape = shape_of(i)}, *places[i].role});
  return !FirstPartOfState(table).empty();
}

std::vector<DcpPlace> PlaceDcpTensors(std::span<const DcpName> tensors, const DcpOptimizers& optimizers) {
  std::vector<std::optional<DcpPlace>> states;
  std::set<std::string> trained;
  for (const DcpName& tensor : tensors) {
    states.push_back(DcpStatePlace(tensor.name, optimizers));
    if (states.back()) trained.insert(states.back()->parameter);
  }
  Holders holders(optimizers);
  std::vector<std::optional<Holders::Entry>> entries(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool hyper = std::ranges::any_of(optimizers.starts, [&](const std::string& optimizer) {
      return tensors[i].name.starts_with(optimizer + "param_groups.");
    });
    if (!states[i] && !hyper) entries[i] = holders.Add(tensors[i], trained.contains(ModelName(tensors[i])));
  }
  const auto of_training = holders.OfTraining();
  std::vector<DcpPlace> places;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (states[i])
      places.push_back(*std::move(states[i]));
    else if (!entries[i] || of_training.contains(*entries[i]))
      places.push_back({tensors[i].name, std::nullopt, true});
    else
      places.push_back({ModelName(tensors[i])});
  TellWeightsApart(tensors, places);
  TellOptimizersApart(places);
  return places;
}

}  // namespace cairn
