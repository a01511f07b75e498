#include "convert/formats/deepspeed/zero_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "convert/formats/deepspeed/model_file.h"
#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

// torch's own state dict, or a list for elastic checkpoints.
const PyValue* BaseOf(const PyValue& optimizer, int stage) {
  return Find(optimizer, stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
}

}  // namespace

const PyValue* ZeroOptimizerOf(const TorchFile& shard) {
  return FindKind(shard.root(), "optimizer_state_dict", PyKind::kDict);
}

// 0-based names of DeepSpeed's enum; older versions wrote the number.
int ZeroStageOf(const PyValue& optimizer) {
  const PyValue* stage = Find(optimizer, "zero_stage");
  if (!stage) return Find(optimizer, "fp32_flat_groups") ? 3 : 1;
  if (const auto number = AsInt(stage)) return static_cast<int>(*number);
  const PyValue* argument =
      stage->items.empty() ? nullptr : stage->items.back();  // (2), or (enum, 'gradients')
  if (const auto number = AsInt(argument)) return static_cast<int>(*number);
  const std::string_view name = AsText(argument).value_or("");
  return name == "weights" ? 3 : name == "gradients" ? 2 : 1;
}

const PyValue* GroupState(const PyValue& optimizer, int stage, size_t group) {
  const PyValue* base = BaseOf(optimizer, stage);
  if (base && base->is(PyKind::kList)) return ItemOf(base, group);
  return base ? EntryOf(Find(*base, "state"), static_cast<int64_t>(group)) : nullptr;
}

Result<std::vector<size_t>> PartitionCounts(const TorchFile& shard) {
  const PyValue* optimizer = ZeroOptimizerOf(shard);
  const PyValue* found = optimizer ? Find(*optimizer, "partition_count") : nullptr;
  const bool list = found && found->is(PyKind::kList) && !found->items.empty();
  std::vector<size_t> counts;
  for (size_t g = 0; g < (list ? found->items.size() : 1); ++g) {
    const auto count = AsInt(list ? ItemOf(found, g) : found);
    if (!count || *count < 1 || *count > (1 << 20))
      return Corrupt("{}: it does not say how many ranks share it", shard.path());
    counts.push_back(static_cast<size_t>(*count));
  }
  const size_t most = *std::ranges::max_element(counts);
  for (const size_t count : counts)
    if (most % count != 0)
      return Corrupt("{}: {} ranks cannot share a group that is cut in {}", shard.path(), most, count);
  return counts;
}

Result<std::set<double>> ZeroSteps(FileSystem& fs, const TorchFile& shard, int stage) {
  std::set<double> steps;
  for (size_t g = 0; const PyValue* state = GroupState(*ZeroOptimizerOf(shard), stage, g); ++g) {
    CAIRN_ASSIGN_OR_RETURN(const auto step, ScalarOf(fs, shard, Find(*state, "step")));
    if (step) steps.insert(*step);
  }
  return steps;
}

nlohmann::json ZeroState(const PyValue& optimizer, int stage) {
  nlohmann::json state = nlohmann::json::object();
  const PyValue* base = BaseOf(optimizer, stage);
  if (auto groups = ParamGroupsOf(base ? Find(*base, "param_groups") : nullptr); !groups.empty())
    state["param_groups"] = std::move(groups);
  // DeepSpeed accepts it as its own again, regardless of its configuration.
  if (const auto clip = AsNumber(Find(optimizer, "clip_grad"))) state["clip_grad"] = *clip;
  PutLossScale(optimizer, Find(optimizer, "loss_scaler"), state);
  return state;
}

}  // namespace cairn
