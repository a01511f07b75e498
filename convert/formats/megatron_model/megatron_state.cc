#include "convert/formats/megatron_model/megatron_state.h"

#include <algorithm>
#include <unordered_set>

#include "convert/formats/training/param_groups.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

using nlohmann::json;

// The entries of Megatron's top level, and of its optimizer, that are read in addition to the model's.
constexpr std::string_view kRead[] = {"args",         "checkpoint_version",  "content_metadata", "iteration",
                                      "lr_scheduler", "opt_param_scheduler", "optimizer",        "tokens",
                                      "total_iters"};
constexpr std::string_view kReadOfOptimizer[] = {
    "fp32_from_fp16_params",     "grad_scaler", "optimizer", "param_groups",
    "param_state_sharding_type", "state"};

void LeaveOthers(const PyValue& dict, const std::set<std::string>& read, const std::string& prefix,
                 Account& account) {
  for (size_t i = 0; dict.is(PyKind::kDict) && i + 1 < dict.items.size(); i += 2)
    if (const std::string key = KeyText(*dict.items[i]);
        !read.contains(key) && !dict.items[i + 1]->is(PyKind::kNone))
      account.OmitValue(prefix + key);
}

void CopyInteger(const PyValue* from, const char* key, const char* name, json& state) {
  if (const auto value = AsInt(from ? Find(*from, key) : nullptr)) state[name] = *value;
}

void AddSchedule(const PyValue& schedule, json& state) {
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

void AddSharedParams(const PyValue& shared, json& state) {
  for (size_t i = 0; i + 1 < shared.items.size(); i += 2)
    if (const auto first = AsText(shared.items[i + 1]))
      state["shared_params"][KeyText(*shared.items[i])] = std::string(*first);
}

// ZeRO-3 and universal checkpoints state it nowhere else: they hold only the fp32 masters.
void AddParamsDtype(const PyValue& config, json& state) {
  for (const auto& [key, dtype] :
       {std::pair("bf16", Dtype::kBF16), std::pair("bfloat16", Dtype::kBF16), std::pair("fp16", Dtype::kF16)})
    if (const PyValue* section = FindKind(config, key, PyKind::kDict))
      if (AsInt(Find(*section, "enabled")).value_or(0) != 0) state["params_dtype"] = Name(dtype);
}

// It decides the order in which DeepSpeed reads its own optimizer files.
void AddRoundRobin(const PyValue& config, json& state) {
  const PyValue* zero = FindKind(config, "zero_optimization", PyKind::kDict);
  if (zero && AsInt(Find(*zero, "round_robin_gradients")).value_or(0) != 0)
    state["round_robin_gradients"] = true;
}

// The state dicts of torch's optimizers, each in a wrapper or, of fp32, without one.
std::vector<const PyValue*> OptimizersOf(const PyValue& optimizer) {
  std::vector<const PyValue*> inner = ChainedOf(optimizer);
  for (const PyValue*& wrapped : inner)
    if (const PyValue* in = FindKind(*wrapped, "optimizer", PyKind::kDict)) wrapped = in;
  return inner;
}

bool IsCount(const std::optional<double>& number) { return number && *number >= 0 && *number < 1e15; }

void TakeStep(const json& groups, json& state) {
  if (groups[0].contains("step") && groups[0]["step"].is_number())
    state["optimizer_step"] = groups[0]["step"];
}

// The step and the rate of an optimizer that runs in a CUDA graph are tensors of one element.
Status AddNumbersOfGroups(FileSystem& fs, const TorchFile& file, const PyValue& optimizer, json& state) {
  const auto groups = state.find("param_groups");
  if (groups == state.end()) return OkStatus();
  std::vector<const PyValue*> of_file;
  for (const PyValue* inner : OptimizersOf(optimizer))
    if (const PyValue* list = Find(*inner, "param_groups"))
      of_file.insert(of_file.end(), list->items.begin(), list->items.end());
  for (size_t g = 0; g < std::min(of_file.size(), groups->size()); ++g) {
    const PyValue& group = *of_file[g];
    for (size_t i = 0; group.is(PyKind::kDict) && i + 1 < group.items.size(); i += 2) {
      if (!group.items[i + 1]->is(PyKind::kTensor)) continue;
      const std::string key = KeyText(*group.items[i]);
      CAIRN_ASSIGN_OR_RETURN(const auto number, ScalarOf(fs, file, group.items[i + 1]));
      if (number && (key != "step" || IsCount(number)))
        (*groups)[g][key] = key == "step" ? json(static_cast<int64_t>(*number)) : json(*number);
    }
  }
  TakeStep(*groups, state);
  return OkStatus();
}

Status AddGradScaler(FileSystem& fs, const TorchFile& file, const PyValue* scaler, json& state) {
  if (!scaler) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const auto scale, ScalarOf(fs, file, Find(*scaler, "scale")));
  if (!scale) return OkStatus();
  state["loss_scale"] = *scale;
  state["dynamic_loss_scale"] = true;
  for (const auto& [key, name] : {std::pair("growth_tracker", "loss_scale_good_steps"),
                                  std::pair("hysteresis_tracker", "loss_scale_hysteresis")}) {
    CAIRN_ASSIGN_OR_RETURN(const auto count, ScalarOf(fs, file, Find(*scaler, key)));
    if (IsCount(count)) state[name] = static_cast<int64_t>(*count);
  }
  return OkStatus();
}

}  // namespace

std::vector<const PyValue*> ChainedOf(const PyValue& optimizer) {
  if (optimizer.is(PyKind::kList) && !optimizer.items.empty())
    return {optimizer.items.begin(), optimizer.items.end()};
  std::vector<const PyValue*> chained;
  for (int64_t i = 0; const PyValue* wrapped = EntryOf(&optimizer, i); ++i) chained.push_back(wrapped);
  return chained.empty() ? std::vector{&optimizer} : chained;
}

json MegatronState(const PyValue& root) {
  json state = json::object();
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
  if (const PyValue* optimizer = Find(root, "optimizer"))
    for (const PyValue* inner : OptimizersOf(*optimizer)) AddParamGroups(*inner, state);
  return state;
}

void AddParamGroups(const PyValue& optimizer, json& state) {
  auto groups = ParamGroupsOf(Find(optimizer, "param_groups"));
  if (groups.empty()) return;
  TakeStep(groups, state);
  json& all = state["param_groups"];
  for (json& group : groups) all.push_back(std::move(group));
}

Status AddNumbersInTensors(FileSystem& fs, const TorchFile& file, const PyValue& root, json& state) {
  const PyValue* optimizer = Find(root, "optimizer");
  if (!optimizer) return OkStatus();
  CAIRN_RETURN_IF_ERROR(AddNumbersOfGroups(fs, file, *optimizer, state));
  for (const PyValue* inner : OptimizersOf(*optimizer)) {
    const PyValue* states = FindKind(*inner, "state", PyKind::kDict);
    CAIRN_ASSIGN_OR_RETURN(const auto step,
                           ScalarOf(fs, file, states ? Find(*states, "common_step") : nullptr));
    if (IsCount(step)) state["optimizer_step"] = static_cast<int64_t>(*step);
  }
  return AddGradScaler(fs, file, FindKind(*ChainedOf(*optimizer)[0], "grad_scaler", PyKind::kDict), state);
}

void LeaveWhatIsNotRead(const PyValue& root, const std::set<std::string>& models, const std::string& prefix,
                        Account& account) {
  std::set<std::string> read(std::begin(kRead), std::end(kRead));
  read.insert(models.begin(), models.end());
  LeaveOthers(root, read, prefix, account);
  if (const PyValue* optimizer = Find(root, "optimizer"))
    for (const PyValue* chained : ChainedOf(*optimizer))
      LeaveOthers(*chained, {std::begin(kReadOfOptimizer), std::end(kReadOfOptimizer)}, prefix + "optimizer.",
                  account);
}

bool IsEmptyState(const PyValue& state) {
  std::unordered_set<const PyValue*> seen;
  std::vector<const PyValue*> todo{&state};
  while (!todo.empty()) {
    const PyValue* value = todo.back();
    todo.pop_back();
    if (!value || !seen.insert(value).second) continue;
    if (value->is(PyKind::kTensor) && value->tensor->shape.Volume() > 0) return false;
    if ((value->is(PyKind::kBytes) || value->is(PyKind::kStr)) && !value->text.empty()) return false;
    todo.insert(todo.end(), value->items.begin(), value->items.end());
    todo.insert(todo.end(), {value->state, value->contents});
  }
  return true;
}

}  // namespace cairn
