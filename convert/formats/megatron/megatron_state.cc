#include "convert/formats/megatron/megatron_state.h"

#include "convert/formats/training/param_groups.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

void CopyInteger(const PyValue* from, const char* key, const char* name, nlohmann::json& state) {
  if (const auto value = AsInt(from ? Find(*from, key) : nullptr)) state[name] = *value;
}

void AddSchedule(const PyValue& schedule, nlohmann::json& state) {
  for (size_t i = 0; i + 1 < schedule.items.size(); i += 2) {
    const std::string key = "lr_schedule." + KeyText(*schedule.items[i]);
    const PyValue* value = schedule.items[i + 1];
    if (const auto text = AsText(value))
      state[key] = std::string(*text);
    else if (value->is(PyKind::kBool))
      state[key] = value->integer != 0;
    else if (const auto integer = AsInt(value))
      state[key] = *integer;
    else if (const auto number = AsNumber(value))
      state[key] = *number;
  }
}

void AddSharedParams(const PyValue& shared, nlohmann::json& state) {
  for (size_t i = 0; i + 1 < shared.items.size(); i += 2)
    if (const auto first = AsText(shared.items[i + 1]))
      state["shared_params"][KeyText(*shared.items[i])] = std::string(*first);
}

// ZeRO-3 and universal checkpoints state it nowhere else: they hold the fp32 masters alone.
void AddParamsDtype(const PyValue& config, nlohmann::json& state) {
  for (const auto& [key, dtype] :
       {std::pair("bf16", Dtype::kBF16), std::pair("bfloat16", Dtype::kBF16), std::pair("fp16", Dtype::kF16)})
    if (const PyValue* section = FindKind(config, key, PyKind::kDict))
      if (AsInt(Find(*section, "enabled")).value_or(0) != 0) state["params_dtype"] = Name(dtype);
}

// It decides the order in which DeepSpeed reads its own optimizer files.
void AddRoundRobin(const PyValue& config, nlohmann::json& state) {
  const PyValue* zero = FindKind(config, "zero_optimization", PyKind::kDict);
  if (zero && AsInt(Find(*zero, "round_robin_gradients")).value_or(0) != 0)
    state["round_robin_gradients"] = true;
}

}  // namespace

nlohmann::json MegatronState(const PyValue& root) {
  nlohmann::json state = nlohmann::json::object();
  CopyInteger(&root, "global_steps", "iteration", state);
  CopyInteger(&root, "total_iters", "iteration", state);
  CopyInteger(&root, "iteration", "iteration", state);
  CopyInteger(&root, "global_samples", "consumed_samples", state);
  CopyInteger(Find(root, "args"), "consumed_train_samples", "consumed_samples", state);
  CopyInteger(&root, "tokens", "consumed_tokens", state);
  CopyInteger(&root, "skipped_steps", "skipped_steps", state);
  for (const char* name : {"opt_param_scheduler", "lr_scheduler"})
    if (const PyValue* schedule = FindKind(root, name, PyKind::kDict)) AddSchedule(*schedule, state);
  if (const PyValue* config = FindKind(root, "ds_config", PyKind::kDict)) {
    AddParamsDtype(*config, state);
    AddRoundRobin(*config, state);
  }
  if (const PyValue* shared = FindKind(root, "shared_params", PyKind::kDict)) AddSharedParams(*shared, state);
  const PyValue* optimizer = FindKind(root, "optimizer", PyKind::kDict);
  const PyValue* inner = optimizer ? Find(*optimizer, "optimizer") : nullptr;
  if (!inner) inner = optimizer;  // of fp32
  if (inner) AddParamGroups(*inner, state);
  return state;
}

void AddParamGroups(const PyValue& optimizer, nlohmann::json& state) {
  auto groups = ParamGroupsOf(Find(optimizer, "param_groups"));
  if (groups.empty()) return;
  if (groups[0].contains("step") && groups[0]["step"].is_number())
    state["optimizer_step"] = groups[0]["step"];
  state["param_groups"] = std::move(groups);
}

Status AddGradScaler(FileSystem& fs, const TorchFile& file, nlohmann::json& state) {
  const PyValue* optimizer = FindKind(file.root(), "optimizer", PyKind::kDict);
  const PyValue* scaler = optimizer ? FindKind(*optimizer, "grad_scaler", PyKind::kDict) : nullptr;
  if (!scaler) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const auto scale, ScalarOf(fs, file, Find(*scaler, "scale")));
  if (!scale) return OkStatus();
  state["loss_scale"] = *scale;
  state["dynamic_loss_scale"] = true;
  for (const auto& [key, name] : {std::pair("growth_tracker", "loss_scale_good_steps"),
                                  std::pair("hysteresis_tracker", "loss_scale_hysteresis")}) {
    CAIRN_ASSIGN_OR_RETURN(const auto count, ScalarOf(fs, file, Find(*scaler, key)));
    if (count && *count >= 0 && *count < 1e15) state[name] = static_cast<int64_t>(*count);
  }
  return OkStatus();
}

}  // namespace cairn
