// Every tensor gets its name without a prefix, then a rule, or none. The tensors of a rule, of one layer and
// one role, are a group, and a group becomes its tensors of the other form. A state is cut as its weight is;
// one number counts for each tensor that its weight becomes; a state of another shape (Adafactor's rows)
// wants a weight that is only renamed.

#include "convert/formats/hugging_face/names_mapping.h"

#include <algorithm>
#include <set>

#include "ckpt/base/first_axis.h"
#include "ckpt/base/glob.h"
#include "ckpt/base/short_list.h"
#include "convert/foreign/shared_parameters.h"
#include "convert/formats/training/dcp_places.h"

namespace cairn {
namespace {

using nlohmann::json;

// Rows of a dimension that torch.chunk gives to each of `count` chunks.
std::vector<uint64_t> Chunks(uint64_t rows, size_t count) {
  const uint64_t most = (rows + count - 1) / count;
  std::vector<uint64_t> chunks;
  for (size_t i = 0; i < count; ++i) {
    chunks.push_back(std::min(most, rows));
    rows -= chunks.back();
  }
  return chunks;
}

class NamesMapper {
 public:
  NamesMapper(const TensorTable& stored, const Manifest& training, const Model& model,
              const MemoryNames* names, bool in_memory, const std::vector<std::string>& allow)
      : stored_(stored), training_(training), names_(names), in_memory_(in_memory), allow_(allow) {
    if (names != nullptr) tied_ = names->Tied(model.Get("config"));
    optimizers_ = OptimizerPaths(training);
    one_step_ = training.state.value("one_optimizer_step", json()) == true;
  }

  Result<ConfigMapping> Map() {
    for (uint32_t i = 0; i < stored_.tensors.size(); ++i) Sort(i);
    CAIRN_RETURN_IF_ERROR(CheckSorted());
    CAIRN_RETURN_IF_ERROR(TakePrefixesOff());
    CAIRN_RETURN_IF_ERROR(ChooseForm());
    for (const uint32_t tensor : kept_) CAIRN_RETURN_IF_ERROR(Place(tensor));
    if (!unknown_.empty())
      return InvalidArgument(
          "{} tensors have no place in a {}, as transformers has it: {}; --allow GLOB leaves them out",
          unknown_.size(), names_->class_name(), ShortList(unknown_));
    for (const auto& key : order_) CAIRN_RETURN_IF_ERROR(MapGroup(key));
    NoteState();
    return std::move(mapped_);
  }

 private:
  struct Key {
    const NamesRow* row;
    std::vector<uint64_t> numbers;
    std::string name;  // without a row
    Role role;
    auto operator<=>(const Key&) const = default;
  };
  // The tensors of a group: by expert and number in the row.
  using Group = std::map<std::pair<uint64_t, size_t>, uint32_t>;

  const TensorEntry& entry(uint32_t tensor) const { return stored_.tensors[tensor]; }
  const std::string& name(uint32_t tensor) const { return name_.at(tensor); }
  static bool IsState(Role role) { return IsOptimizerState(role) && role != Role::kMaster; }
  bool IsAllowed(const std::string& name) const { return FitsAnyGlob(name, allow_); }

  // What belongs to neither model nor optimizer is left.
  void Sort(uint32_t tensor) {
    const TensorEntry& stored = entry(tensor);
    const bool state = IsState(stored.role), moments = MayHoldMoments(stored);
    if ((moments || state) && IsAllowed("optimizer")) return mapped_.left[Fate::kAllowed].push_back(tensor);
    if (moments || IsBelowAny(stored.spec.name, optimizers_))
      return unknown_states_.push_back(DisplayName(stored));
    if (IsOpaque(stored.role) || (stored.role == Role::kStep && one_step_))
      return mapped_.left[Fate::kTrainingState].push_back(tensor);
    if (IsAllowed(stored.spec.name)) {
      if (!state)
        mapped_.history.push_back(fmt::format("import: {} was left out (--allow)", DisplayName(stored)));
      return mapped_.left[Fate::kAllowed].push_back(tensor);
    }
    adapter_ |= stored.spec.name.find(".lora_") != std::string::npos;
    name_[tensor] = stored.spec.name;
    kept_.push_back(tensor);
  }

  Status CheckSorted() const {
    if (!unknown_states_.empty())
      return InvalidArgument(
          "the optimizer's state has no place in a model in this form ({}); --allow optimizer takes the "
          "weights without it",
          ShortList(unknown_states_));
    if (adapter_)
      return InvalidArgument(
          "its tensors are of an adapter (LoRA); merge it into the model first, or take the base model by "
          "--allow '*lora_*'; without --config all tensors keep their own names");
    return OkStatus();
  }

  // The name of `first` in files, if that is another one.
  std::string FirstInFiles() const {
    const MemoryNames::Found found = names_->InMemory(names_->first());
    return found.row != nullptr && found.row->is_rename() ? found.row->files[0] : names_->first();
  }

  // Weights and states each have one prefix, which a tensor that each model has shows.
  Status TakePrefixesOff() {
    if (names_ == nullptr) return OkStatus();
    const std::string firsts[] = {names_->first(), FirstInFiles()};
    std::optional<std::string> prefixes[2];
    for (const uint32_t tensor : kept_)
      for (const std::string& first : firsts) {
        const std::string& stored = name(tensor);
        const bool whole = stored == first;
        if (!whole && !stored.ends_with("." + first)) continue;
        auto& prefix = prefixes[IsState(entry(tensor).role)];
        if (!prefix || whole) prefix = stored.substr(0, stored.size() - first.size());
      }
    if (!prefixes[0])
      return NotFound("it does not have {}, which each {} of transformers has", names_->first(),
                      names_->class_name());
    for (const uint32_t tensor : kept_) {
      const bool state = IsState(entry(tensor).role);
      const std::string prefix = state && prefixes[1] ? *prefixes[1] : *prefixes[0];
      if (name(tensor).starts_with(prefix))
        name_[tensor].erase(0, prefix.size());
      else if (!state)
        unknown_.push_back(DisplayName(entry(tensor)));
    }
    return OkStatus();
  }

  // The source has names of memory if only they have a rule.
  Status ChooseForm() {
    if (names_ == nullptr) return OkStatus();
    std::string memory, files;
    for (const uint32_t tensor : kept_) {
      const bool of_memory = names_->InMemory(name(tensor)).row != nullptr;
      const bool of_files = names_->InFiles(name(tensor)).row != nullptr;
      if (of_memory && !of_files && memory.empty()) memory = name(tensor);
      if (of_files && !of_memory && files.empty()) files = name(tensor);
    }
    if (!memory.empty() && !files.empty())
      return InvalidArgument("{} is a name of transformers' memory, and {} one of its files", memory, files);
    from_memory_ = files.empty();
    return OkStatus();
  }

  // The tensor is a copy of another; it is compared, or replaces one that is missing.
  bool IsCopy(uint32_t tensor) {
    const auto tied = tied_.find(name(tensor));
    if (tied == tied_.end()) return false;
    for (const uint32_t other : kept_) {
      if (name(other) != tied->second || entry(other).role != entry(tensor).role) continue;
      mapped_.twins.emplace_back(other, tensor);
      mapped_.left[Fate::kReplica].push_back(tensor);
      return true;
    }
    name_[tensor] = tied->second;
    return false;
  }

  Status Place(uint32_t tensor) {
    if (IsCopy(tensor)) return OkStatus();
    const TensorEntry& stored = entry(tensor);
    MemoryNames::Found found;
    if (names_ != nullptr) {
      found = from_memory_ ? names_->InMemory(name(tensor)) : names_->InFiles(name(tensor));
      if (found.row == nullptr && names_->IsUnknown(name(tensor))) unknown_.push_back(DisplayName(stored));
    }
    if (!IsState(stored.role)) shape_of_.emplace(name(tensor), stored.spec.shape);
    const bool changes = found.row != nullptr && from_memory_ != in_memory_;
    if (!changes) found = {};  // a group by itself
    const Key key{found.row, std::move(found.numbers), changes ? "" : name(tensor), stored.role};
    Group& group = groups_[key];
    if (group.empty()) order_.push_back(key);
    const auto [other, added] = group.try_emplace({found.expert, found.index}, tensor);
    return added
               ? OkStatus()
               : InvalidArgument("a tensor of the model occurs twice: {} as {}; --allow GLOB leaves one out",
                                 DisplayName(entry(other->second)), DisplayName(stored));
  }

  // A number for each parameter, or a state that only its own optimizer can cut.
  bool HasOtherShape(uint32_t tensor) const {
    const auto weight = shape_of_.find(name(tensor));
    return IsState(entry(tensor).role) && weight != shape_of_.end() &&
           weight->second != entry(tensor).spec.shape;
  }

  Status MapGroup(const Key& key) {
    const Group& group = groups_.at(key);
    if (key.row == nullptr) return Rename(group.begin()->second, name(group.begin()->second));
    const auto& from = from_memory_ ? key.row->memory : key.row->files;
    const uint64_t experts = from_memory_ || !key.row->by_expert() ? 1 : group.rbegin()->first.first + 1;
    if (group.size() < from.size() * std::min<uint64_t>(experts, stored_.tensors.size()) ||
        group.size() != from.size() * experts)
      return NotFound("the source has {}, and other tensors of {} are missing",
                      DisplayName(entry(group.begin()->second)), FilledName(key.row->memory[0], key.numbers));
    if (std::ranges::any_of(group, [&](const auto& one) { return HasOtherShape(one.second); }))
      return MapOtherShape(key, group);
    return from_memory_ ? MapToFiles(key, group) : MapToMemory(key, group, experts);
  }

  Status Rename(uint32_t tensor, const std::string& to) {
    ParameterSpec spec = entry(tensor).spec;
    spec.name = to;
    const Box whole = Box::Whole(spec.shape);
    mapped_.parts.push_back({{whole, whole}, Add(std::move(spec), tensor), tensor});
    return OkStatus();
  }

  Status MapOtherShape(const Key& key, const Group& group) {
    const uint32_t tensor = group.begin()->second;
    const auto& to = from_memory_ ? key.row->files : key.row->memory;
    if (key.row->is_rename()) return Rename(tensor, FilledName(to[0], key.numbers));
    if (group.size() > 1 || entry(tensor).spec.shape.Volume() != 1)
      return NotSupported(
          "{} has shape {}, which cannot be cut as its weight is; --allow optimizer takes the weights "
          "without "
          "the optimizer's state",
          DisplayName(entry(tensor)), ToString(entry(tensor).spec.shape));
    const uint64_t experts = key.row->by_expert() ? shape_of_.at(name(tensor))[0] : 1;
    for (uint64_t expert = 0; expert < experts; ++expert)
      for (const std::string& one : to)
        CAIRN_RETURN_IF_ERROR(Rename(tensor, FilledName(one, key.numbers, expert)));
    return OkStatus();
  }

  Status MapToFiles(const Key& key, const Group& group) {
    const bool by_expert = key.row->by_expert();
    if (group.size() > 1) {  // one tensor in files
      CAIRN_ASSIGN_OR_RETURN(ParameterSpec joined, Joined(group, key.row->files[0], key.numbers));
      const uint32_t number = Add(std::move(joined), group.begin()->second);
      return AddRows(group, [&](uint32_t tensor, Box rows) {
        mapped_.parts.push_back({{rows, Box::Whole(entry(tensor).spec.shape)}, number, tensor});
      });
    }
    const uint32_t tensor = group.begin()->second;
    const Dims& shape = entry(tensor).spec.shape;
    if (shape.rank() < (by_expert ? 2 : 1)) return WrongShape(tensor);
    const Dims one = by_expert ? WithoutFirst(shape) : shape;
    const std::vector<uint64_t> chunks = Chunks(one[0], key.row->files.size());
    if (chunks.back() == 0) return WrongShape(tensor);
    for (uint64_t expert = 0; expert < (by_expert ? shape[0] : 1); ++expert) {
      uint64_t row = 0;
      for (size_t i = 0; i < chunks.size(); ++i) {
        Box rows = Box::Whole(one);
        rows.offset[0] = std::exchange(row, row + chunks[i]);
        rows.extent[0] = chunks[i];
        ParameterSpec spec{.name = FilledName(key.row->files[i], key.numbers, expert), .shape = rows.extent};
        const Box whole = Box::Whole(spec.shape);
        if (by_expert) rows = {WithFirst(expert, rows.offset), WithFirst(1, rows.extent)};
        mapped_.parts.push_back({{whole, rows}, Add(std::move(spec), tensor), tensor});
      }
    }
    return OkStatus();
  }

  Status MapToMemory(const Key& key, const Group& group, uint64_t experts) {
    if (key.row->memory.size() > 1) {  // chunks of one tensor in files
      const uint32_t tensor = group.begin()->second;
      if (entry(tensor).spec.shape.rank() == 0) return WrongShape(tensor);
      Box rows = Box::Whole(entry(tensor).spec.shape);
      const std::vector<uint64_t> chunks = Chunks(rows.extent[0], key.row->memory.size());
      if (chunks.back() == 0) return WrongShape(tensor);
      for (size_t i = 0; i < chunks.size(); ++i) {
        rows.extent[0] = chunks[i];
        ParameterSpec spec{.name = FilledName(key.row->memory[i], key.numbers), .shape = rows.extent};
        const Box whole = Box::Whole(spec.shape);
        mapped_.parts.push_back({{whole, rows}, Add(std::move(spec), tensor), tensor});
        rows.offset[0] += chunks[i];
      }
      return OkStatus();
    }
    const bool by_expert = key.row->by_expert();
    const size_t names = key.row->files.size();
    Group of_first;
    for (const auto& [place, tensor] : group)
      if (place.first == 0) of_first.emplace(place, tensor);
    CAIRN_ASSIGN_OR_RETURN(ParameterSpec joined, Joined(of_first, key.row->memory[0], key.numbers));
    if (by_expert) {
      if (joined.shape.rank() == kMaxRank) return WrongShape(group.begin()->second);
      joined.shape = WithFirst(experts, joined.shape);
    }
    const uint32_t number = Add(std::move(joined), group.begin()->second);
    for (auto first = group.begin(); first != group.end();) {
      const uint64_t expert = first->first.first;
      Group of_one;
      for (size_t i = 0; i < names; ++i, ++first) of_one.insert(*first);
      for (const auto& [place, tensor] : of_one)
        if (entry(tensor).spec.shape != entry(of_first.at({0, place.second})).spec.shape ||
            entry(tensor).dtype != entry(group.begin()->second).dtype)
          return WrongShape(tensor);
      CAIRN_RETURN_IF_ERROR(AddRows(of_one, [&](uint32_t tensor, Box rows) {
        if (by_expert) rows = {WithFirst(expert, rows.offset), WithFirst(1, rows.extent)};
        mapped_.parts.push_back({{rows, Box::Whole(entry(tensor).spec.shape)}, number, tensor});
      }));
    }
    return OkStatus();
  }

  // All tensors of a group in one, one after the other.
  Result<ParameterSpec> Joined(const Group& group, const std::string& to,
                               const std::vector<uint64_t>& numbers) const {
    const TensorEntry& first = entry(group.begin()->second);
    ParameterSpec joined{.name = FilledName(to, numbers), .shape = first.spec.shape};
    if (joined.shape.rank() == 0) return WrongShape(group.begin()->second);
    joined.shape[0] = 0;
    for (const auto& [place, tensor] : group) {
      const Dims& shape = entry(tensor).spec.shape;
      if (shape.rank() != joined.shape.rank() || WithoutFirst(shape) != WithoutFirst(joined.shape) ||
          entry(tensor).dtype != first.dtype)
        return WrongShape(tensor);
      joined.shape[0] += shape[0];
    }
    return joined;
  }

  // Calls `add` with the rows of each tensor of a group in that.
  template <typename AddTensor>
  Status AddRows(const Group& group, const AddTensor& add) {
    uint64_t row = 0;
    for (const auto& [place, tensor] : group) {
      Box rows = Box::Whole(entry(tensor).spec.shape);
      rows.offset[0] = std::exchange(row, row + rows.extent[0]);
      add(tensor, rows);
    }
    return OkStatus();
  }

  Status WrongShape(uint32_t tensor) const {
    return Corrupt("tensor {} has shape {} and type {}, which do not fit those of the tensors beside it",
                   DisplayName(entry(tensor)), ToString(entry(tensor).spec.shape),
                   cairn::Name(entry(tensor).dtype));
  }

  uint32_t Add(ParameterSpec spec, uint32_t tensor) {
    const TensorEntry& stored = entry(tensor);
    const auto named = named_by_.try_emplace(stored.spec.name, stored.role).first;
    if (named->second == stored.role) mapped_.parameters_of[stored.spec.name].push_back(spec.name);
    mapped_.catalog.tensors.push_back({std::move(spec), stored.role, stored.dtype});
    return static_cast<uint32_t>(mapped_.catalog.tensors.size() - 1);
  }

  // A training has its own keys above the names, and asks for each name of a tied tensor.
  void NoteState() {
    for (const auto& [original, copy] : mapped_.twins)
      mapped_.parameters_of[entry(copy).spec.name] = mapped_.parameters_of[entry(original).spec.name];
    if (!in_memory_) return;
    if (!tied_.empty()) NameByTrained();
    std::set<std::string> held;
    for (const TensorEntry& tensor : mapped_.catalog.tensors) held.insert(tensor.spec.name);
    for (const auto& [copy, original] : tied_)
      if (held.contains(original) && !held.contains(copy)) mapped_.state["shared_params"][copy] = original;
  }

  // The name that an optimizer's states have becomes that of the original.
  void NameByTrained() {
    for (const auto& [original, trained] : names_->trained()) {
      for (TensorEntry& tensor : mapped_.catalog.tensors)
        if (tensor.spec.name == original) tensor.spec.name = trained;
      for (auto& [stored, parameters] : mapped_.parameters_of)
        std::ranges::replace(parameters, original, trained);
      for (auto& [copy, of] : tied_)
        if (of == original) of = trained;
      tied_.erase(trained);
      tied_[original] = trained;
    }
  }

  const TensorTable& stored_;
  const Manifest& training_;
  const MemoryNames* const names_;
  const bool in_memory_;     // the names that are wanted
  bool from_memory_ = true;  // those of the source
  const std::vector<std::string>& allow_;
  std::map<std::string, std::string> tied_;
  std::vector<std::string> optimizers_;   // of a file of torch.save (account.h)
  bool one_step_ = false;                 // the manifest's state has the number that each parameter has
  std::vector<uint32_t> kept_;            // tensors of the model and of its optimizer
  std::map<uint32_t, std::string> name_;  // theirs, without a prefix
  bool adapter_ = false;
  std::vector<std::string> unknown_, unknown_states_;
  std::map<std::string, Dims> shape_of_;  // of weights, by name
  std::vector<Key> order_;
  std::map<Key, Group> groups_;
  std::map<std::string, Role> named_by_;  // the role that gave a stored name its parameters
  ConfigMapping mapped_;
};

}  // namespace

Result<ConfigMapping> MapByNames(const TensorTable& stored, const Manifest& training, const Model& model,
                                 const MemoryNames* names, bool in_memory,
                                 const std::vector<std::string>& allow) {
  return NamesMapper(stored, training, model, names, in_memory, allow).Map();
}

}  // namespace cairn
