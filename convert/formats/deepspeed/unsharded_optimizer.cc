// Three forms: one flat vector of masters for each group, a list of masters, or none. With masters, each
// takes the first free weight that it rounds to, and the states of its number go with it. Only both ends of
// a tensor are compared; the caller proves all masters in full. Without masters only the shapes decide, so
// each shape must be in one group and have as many states as weights. Anything else is refused, not guessed.

#include "convert/formats/deepspeed/unsharded_optimizer.h"

#include <algorithm>
#include <map>
#include <set>

#include "convert/formats/deepspeed/model_file.h"
#include "convert/formats/megatron_model/megatron_optimizer.h"
#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

// A stretch of a master and of its states: the whole of them, or a parameter's in a flat group.
struct Match {
  size_t weight = 0;
  uint64_t begin = 0;
  bool flat = false;
};

class UnshardedReader {
 public:
  UnshardedReader(RankSlices& ranks, size_t rank, const RankOptimizer& own, OptimizerFacts& facts)
      : ranks_(ranks),
        own_(own),
        file_(*own.file),
        tp_(static_cast<int>(rank) % ranks.layers.tp),
        facts_(facts),
        values_(ranks.fs, ranks.directory(), ranks.builder),
        weights_(TrainedBy(ranks, rank, own)),
        experts_(ExpertsByMixture(ranks)),
        taken_(weights_.size()) {}

  Status Read(const PyValue& optimizer) {
    ranks_.builder.AddFile(file_.name());
    const PyValue* inner = Find(optimizer, "optimizer_state_dict");
    if (!inner) inner = &optimizer;
    states_ = FindKind(*inner, "state", PyKind::kDict);
    const PyValue* groups = FindKind(*inner, "param_groups", PyKind::kList);
    if (!states_ || !groups) return NotSupported("its optimizer has no state or no param_groups");
    state_["param_groups"] = ParamGroupsOf(groups);
    groups_.resize(groups->items.size());
    PutLossScale(optimizer, &optimizer, state_);
    CAIRN_RETURN_IF_ERROR(ReadSteps());
    const PyValue* flat = FindKind(optimizer, "fp32_groups_flat", PyKind::kList);
    const PyValue* masters = FindKind(optimizer, "fp32_groups", PyKind::kList);
    for (size_t g = 0; g < groups->items.size(); ++g) {
      const PyValue* ids = Find(*groups->items[g], "params");
      group_ = g;
      experts_cut_ = IsOfExperts(*groups->items[g]) ? ExpertParallelSize(*groups->items[g], own_) : 0;
      if (flat)
        CAIRN_RETURN_IF_ERROR(ReadMaster(ItemOf(flat, g), ItemOf(ids, 0), true, "a flat group's masters"));
      const PyValue* own = flat ? nullptr : ItemOf(masters, g);
      for (size_t i = 0; const PyValue* master = ItemOf(own, i); ++i)
        CAIRN_RETURN_IF_ERROR(ReadMaster(master, ItemOf(ids, i), false, fmt::format("master {}", i)));
    }
    if (!flat && !masters) CAIRN_RETURN_IF_ERROR(ReadByShape(*groups));
    ranks_.manifest.state.update(state_);
    facts_.AddGroups(groups_);
    for (RankSlice& slice : found_) ranks_.slices.push_back(std::move(slice));
    return OkStatus();
  }

 private:
  static bool IsOfExperts(const PyValue& group) { return AsInt(Find(group, "moe")).value_or(0) != 0; }

  Status ReadSteps() {
    std::set<double> steps;
    for (size_t i = 1; i < states_->items.size(); i += 2) {
      const PyValue* step = Find(*states_->items[i], "step");
      CAIRN_ASSIGN_OR_RETURN(const auto number, ScalarOf(ranks_.fs, file_, step));
      if (number) steps.insert(*number);
    }
    if (steps.size() == 1) state_["optimizer_step"] = *steps.begin();
    steps_differ_ = steps.size() > 1;
    return OkStatus();
  }

  Result<StoredArray> Array(const TensorRef& tensor, const std::string& name) {
    return ranks_.builder.ArrayIn(file_, tensor, name);
  }

  // The first weight of the model that is not taken and that the master rounds to from `begin` on.
  Result<size_t> WeightOf(const StoredArray& master, uint64_t begin, bool flat) {
    for (size_t w = 0; w < weights_.size(); ++w) {
      const StoredArray& weight = weights_[w]->tensor;
      const bool mine =
          experts_cut_ ? HasExpert(weight.name, experts_, own_.rank, experts_cut_) : !IsOfExpert(weight.name);
      if (taken_[w] || !mine) continue;
      if (!flat && (master.transposed != weight.transposed || !(master.shape == weight.shape))) continue;
      if (flat && weight.transposed) return NotSupported("{} is stored transposed", weight.name);
      CAIRN_ASSIGN_OR_RETURN(const bool rounds, values_.Rounds(master, begin, weight));
      if (!rounds) continue;
      taken_[w] = true;
      return w;
    }
    return Corrupt("{} rounds to no weight from element {} on", master.name, begin);
  }

  void Take(const Match& match, Role role, StoredArray array) {
    const RankSlice& weight = *weights_[match.weight];
    if (match.flat) array = StretchOf(array, match.begin, weight.tensor.shape);
    array.name = weight.tensor.name;
    auto& group = groups_[group_];
    if (std::ranges::find(group, array.name) == group.end()) group.push_back(array.name);
    facts_.by_value |= role == Role::kMaster;
    found_.push_back({weight.place, tp_, role, std::move(array)});
  }

  // `state`: what the optimizer keeps; empty for a parameter that never had a gradient.
  Status TakeStates(const PyValue* state, const Match& match) {
    if (!state) return OkStatus();
    const std::string& name = weights_[match.weight]->tensor.name;
    CAIRN_ASSIGN_OR_RETURN(const OptimizerStates states, StatesOf(*state, name));
    for (const auto& [role, tensor] : states.tensors) {
      CAIRN_ASSIGN_OR_RETURN(StoredArray array, Array(*tensor, fmt::format("{} of {}", Name(role), name)));
      const bool whole = IsNumber(*tensor) || !match.flat;
      Take(whole ? Match{match.weight, 0, false} : match, role, std::move(array));
    }
    if (!steps_differ_ || !states.step) return OkStatus();
    if (!states.step->is(PyKind::kTensor)) return NotSupported("the steps of its parameters differ");
    CAIRN_ASSIGN_OR_RETURN(StoredArray step, Array(*states.step->tensor, "step of " + name));
    Take({match.weight, 0, false}, Role::kStep, std::move(step));
    return OkStatus();
  }

  // The masters of a flat group, or one master. `id`: the number of its states.
  Status ReadMaster(const PyValue* value, const PyValue* id, bool flat, const std::string& name) {
    if (!value || !value->is(PyKind::kTensor)) return NotSupported("{}: it is not a tensor", name);
    CAIRN_ASSIGN_OR_RETURN(const StoredArray master, Array(*value->tensor, name));
    const uint64_t size = master.shape.Volume();
    bool more = !flat || size > 0;
    for (uint64_t at = 0; more; more = flat && at < size) {
      CAIRN_ASSIGN_OR_RETURN(const size_t weight, WeightOf(master, at, flat));
      const Match match{weight, at, flat};
      Take(match, Role::kMaster, master);
      CAIRN_RETURN_IF_ERROR(TakeStates(AsInt(id) ? EntryOf(states_, *AsInt(id)) : nullptr, match));
      at += weights_[weight]->tensor.shape.Volume();
    }
    return OkStatus();
  }

  // Each shape is in only one group, and has as many states as weights; then they are in the same order.
  Status ReadByShape(const PyValue& groups) {
    const auto key = [](const Dims& shape, bool experts) {
      return ToString(shape) + (experts ? " of experts" : "");
    };
    std::map<std::string, std::vector<size_t>> weights;  // of a shape
    for (size_t w = 0; w < weights_.size(); ++w)
      weights[key(weights_[w]->tensor.tensor_shape(), IsOfExpert(weights_[w]->tensor.name))].push_back(w);
    std::map<std::string, std::vector<const PyValue*>> states;
    std::map<std::string, std::set<size_t>> groups_of;
    for (size_t g = 0; g < groups.items.size(); ++g) {
      const PyValue* ids = Find(*groups.items[g], "params");
      const bool experts = IsOfExperts(*groups.items[g]);
      for (size_t i = 0; const PyValue* id = ItemOf(ids, i); ++i) {
        const PyValue* state = AsInt(id) ? EntryOf(states_, *AsInt(id)) : nullptr;
        if (!state) continue;
        CAIRN_ASSIGN_OR_RETURN(const OptimizerStates known, StatesOf(*state, "a parameter"));
        for (const auto& [role, tensor] : known.tensors) {
          if (IsNumber(*tensor)) continue;
          states[key(tensor->shape, experts)].push_back(state);
          groups_of[key(tensor->shape, experts)].insert(g);
          break;
        }
      }
    }
    for (const auto& [shape, of_shape] : states) {
      const auto mine = weights.find(shape);
      if (mine == weights.end() || mine->second.size() != of_shape.size() || groups_of[shape].size() != 1)
        return NotSupported(
            "its optimizer numbers its parameters, and {} of them have shape {} in {} groups: they cannot be "
            "told apart",
            of_shape.size(), shape, groups_of[shape].size());
      group_ = *groups_of[shape].begin();
      for (size_t i = 0; i < of_shape.size(); ++i)
        CAIRN_RETURN_IF_ERROR(TakeStates(of_shape[i], {mine->second[i], 0, false}));
    }
    return OkStatus();
  }

  RankSlices& ranks_;
  const RankOptimizer& own_;
  const TorchFile& file_;
  const int tp_;
  OptimizerFacts& facts_;
  MegatronOptimizer values_;
  const std::vector<const RankSlice*> weights_;  // the trained ones, in the order of the model
  const ExpertCounts experts_;
  std::vector<bool> taken_;  // of the weights
  const PyValue* states_ = nullptr;
  bool steps_differ_ = false;
  size_t group_ = 0;        // that is read
  size_t experts_cut_ = 0;  // over how many ranks, if its parameters are of experts
  std::vector<RankSlice> found_;
  std::vector<std::vector<std::string>> groups_;     // stored names of each group's weights
  nlohmann::json state_ = nlohmann::json::object();  // param_groups, optimizer_step, loss_scale
};

}  // namespace

Status ReadUnsharded(RankSlices& ranks, size_t rank, const RankOptimizer& own, OptimizerFacts& facts) {
  return UnshardedReader(ranks, rank, own, facts).Read(*own.optimizer);
}

}  // namespace cairn
