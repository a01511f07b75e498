#include "convert/targets/training_tensors.h"

#include <algorithm>
#include <map>

#include "ckpt/cast.h"

namespace cairn {
namespace {

class Chooser {
 public:
  Chooser(const TensorTable& catalog, std::optional<Dtype> dtype)
      : catalog_(catalog), lookup_(catalog), dtype_(dtype) {}

  Result<TrainingTensors> Choose() {
    for (const ParameterSpec& spec : catalog_.Parameters()) CAIRN_RETURN_IF_ERROR(AddParameter(spec));
    for (const TrainingParameter& parameter : chosen_.parameters) {
      if (parameter.exp_avg.has_value() != parameter.exp_avg_sq.has_value())
        return Corrupt("{} has one of the optimizer's two moments", parameter.spec.name);
      chosen_.optimizer |= parameter.exp_avg.has_value();
    }
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
      return NotSupported("tensor {} is {}; fp32, bf16 and fp16 are cast", DisplayName(entry),
                          Name(entry.dtype));
    entry.role = role;
    entry.dtype = dtype;
    chosen_.tensors.push_back({source, entry, true});
    return static_cast<uint32_t>(chosen_.tensors.size() - 1);
  }

  Status AddParameter(const ParameterSpec& spec) {
    TrainingParameter parameter{.spec = spec, .weight = 0, .master = {}, .exp_avg = {}, .exp_avg_sq = {}};
    std::optional<uint32_t> weight = Find(spec, Role::kWeight), master = Find(spec, Role::kMaster);
    if (!weight && !master) return NotFound("tensor {} has no weight", spec.name);
    if (!weight) weight = std::exchange(master, std::nullopt);
    const Dtype stored = catalog_.tensors[*weight].dtype, type = dtype_.value_or(stored);
    if (!master && stored == Dtype::kF32 && type != stored) master = weight;
    const bool from_master = master && type != stored;
    CAIRN_ASSIGN_OR_RETURN(parameter.weight, Add(from_master ? *master : *weight, Role::kWeight, type));
    if (master && type != Dtype::kF32) {
      CAIRN_ASSIGN_OR_RETURN(parameter.master, Add(*master, Role::kMaster, catalog_.tensors[*master].dtype));
    }
    for (const auto& [role, place] :
         {std::pair(Role::kExpAvg, &parameter.exp_avg), std::pair(Role::kExpAvgSq, &parameter.exp_avg_sq)}) {
      const auto moment = Find(spec, role);
      if (!moment) continue;
      CAIRN_ASSIGN_OR_RETURN(*place, Add(*moment, role, catalog_.tensors[*moment].dtype));
    }
    chosen_.parameters.push_back(std::move(parameter));
    return OkStatus();
  }

  const TensorTable& catalog_;
  const TensorLookup lookup_;
  const std::optional<Dtype> dtype_;
  TrainingTensors chosen_;
};

}  // namespace

Dtype TrainingTensors::weight_type() const {
  std::map<Dtype, uint64_t> bytes;
  for (const TrainingParameter& parameter : parameters)
    bytes[tensors[parameter.weight].entry.dtype] += tensors[parameter.weight].entry.bytes();
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& row) { return row.second; });
  return most == bytes.end() ? Dtype::kF32 : most->first;
}

Result<TrainingTensors> ChooseTrainingTensors(const TensorTable& catalog, std::optional<Dtype> dtype) {
  return Chooser(catalog, dtype).Choose();
}

void LeaveLoneMasters(TrainingTensors& tensors) {
  for (const TrainingParameter& parameter : tensors.parameters)
    if (parameter.master && !parameter.exp_avg) tensors.tensors[*parameter.master].read_back = false;
}

}  // namespace cairn
