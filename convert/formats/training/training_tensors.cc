// AddParameter() decides which tensor is read for the weight and whether a master is written: a master
// without a weight is the weight, an fp32 weight that is cast is its own master, and fp32 weights need none.

#include "convert/formats/training/training_tensors.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ckpt/codec/cast.h"
#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

class Chooser {
 public:
  Chooser(const CheckpointSource& source, std::optional<Dtype> dtype)
      : catalog_(source.catalog()),
        lookup_(catalog_),
        dtype_(dtype),
        one_step_(source.manifest().state.value("one_optimizer_step", nlohmann::json()) == true) {
    for (const TensorEntry& tensor : catalog_.tensors) roles_.insert(tensor.role);
  }

  Result<TrainingTensors> Choose() {
    for (const ParameterSpec& spec : catalog_.Parameters()) CAIRN_RETURN_IF_ERROR(AddParameter(spec));
    for (const TrainingParameter& parameter : chosen_.parameters) chosen_.optimizer |= parameter.has_state();
    return std::move(chosen_);
  }

 private:
  std::optional<uint32_t> Find(const ParameterSpec& spec, Role role) const {
    const Result<uint32_t> found = lookup_.Find(spec.name, role);
    return found.ok() ? std::optional(*found) : std::nullopt;
  }

  Result<uint32_t> Add(uint32_t source, Role role, Dtype dtype) {
    TensorEntry entry = catalog_.tensors[source];
    if (entry.dtype != dtype && !CanCast(entry.dtype, dtype))
      return NotSupported("tensor {} is {}; only fp32, bf16 and fp16 can be cast", DisplayName(entry),
                          Name(entry.dtype));
    entry.role = role;
    entry.dtype = dtype;
    chosen_.tensors.push_back({source, entry, true});
    return static_cast<uint32_t>(chosen_.tensors.size() - 1);
  }

  Status AddParameter(const ParameterSpec& spec) {
    TrainingParameter parameter{.spec = spec};
    std::optional<uint32_t> weight = Find(spec, Role::kWeight), master = Find(spec, Role::kMaster);
    if (!weight && !master)
      return NotSupported(
          "tensor {} has states of the optimizer but no weight of that name, as if weights were fused only "
          "for the optimizer; cairn strip takes the weights",
          spec.name);
    if (!weight) weight = std::exchange(master, std::nullopt);
    const Dtype stored = catalog_.tensors[*weight].dtype, type = TypeOf(spec, stored);
    if (!master && stored == Dtype::kF32 && type != stored) master = weight;
    const bool from_master = master && type != stored;
    CAIRN_ASSIGN_OR_RETURN(parameter.weight, Add(from_master ? *master : *weight, Role::kWeight, type));
    if (master && type != Dtype::kF32) {
      CAIRN_ASSIGN_OR_RETURN(parameter.master, Add(*master, Role::kMaster, catalog_.tensors[*master].dtype));
    }
    CAIRN_RETURN_IF_ERROR(AddStates(spec, parameter));
    chosen_.parameters.push_back(std::move(parameter));
    return OkStatus();
  }

  Dtype TypeOf(const ParameterSpec& spec, Dtype stored) const {
    const CanonicalModule* module = ModuleOfParameter(spec.name);
    return module && module->keeps_type ? stored : dtype_.value_or(stored);
  }

  Status AddStates(const ParameterSpec& spec, TrainingParameter& parameter) {
    for (const Role& role : roles_) {
      if (!IsOptimizerState(role) || role == Role::kMaster || (role == Role::kStep && one_step_)) continue;
      const auto found = Find(spec, role);
      if (!found) continue;
      CAIRN_ASSIGN_OR_RETURN(const uint32_t index, Add(*found, role, catalog_.tensors[*found].dtype));
      if (role == Role::kStep)
        parameter.step = index;
      else
        parameter.states.emplace_back(role, index);
    }
    return OkStatus();
  }

  const TensorTable& catalog_;
  const TensorLookup lookup_;
  const std::optional<Dtype> dtype_;
  const bool one_step_;
  std::set<Role> roles_;  // of all tensors
  TrainingTensors chosen_;
};

}  // namespace

std::vector<Role> TrainingParameter::roles() const {
  std::vector<Role> roles;
  for (const auto& [role, tensor] : states) roles.push_back(role);
  return roles;
}

uint32_t TrainingParameter::TensorOf(Role role) const {
  if (role == Role::kWeight) return weight;
  if (role == Role::kMaster) return master.value_or(weight);
  return std::ranges::find(states, role, &std::pair<Role, uint32_t>::first)->second;
}

Dtype TrainingTensors::weight_type() const {
  std::map<Dtype, uint64_t> bytes;
  for (const TrainingParameter& parameter : parameters)
    bytes[tensors[parameter.weight].entry.dtype] += tensors[parameter.weight].entry.bytes();
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& row) { return row.second; });
  return most == bytes.end() ? Dtype::kF32 : most->first;
}

Result<TrainingTensors> ChooseTrainingTensors(const CheckpointSource& source, std::optional<Dtype> dtype) {
  return Chooser(source, dtype).Choose();
}

}  // namespace cairn
