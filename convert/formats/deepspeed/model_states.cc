#include "convert/formats/deepspeed/model_states.h"

#include <set>

namespace cairn {
namespace {

std::string Escaped(const std::string& name) {
  std::string pattern;
  for (const char c : name) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  return "^" + pattern + "$";
}

// Patterns by which DeepSpeed's own conversion merges tensor parallel ranks: here one per name.
// DeepSpeed merges the parameters of all stages by the patterns in the first stage's files.
nlohmann::json UniversalInfo(const LocalModel& model, const Topology& topology) {
  std::set<std::string> vocabulary, replicated, rows, halves;
  for (int stage = 0; stage < topology.pp; ++stage) {
    for (const LocalTensor& tensor : model.rank(stage, 0, topology.tp)) {
      const std::string pattern = Escaped(tensor.name);
      if (tensor.is_vocabulary()) vocabulary.insert(pattern);
      if (tensor.cuts.empty())
        replicated.insert(pattern);
      else if (tensor.cuts[0].dim == 1)
        rows.insert(pattern);
      if (tensor.gated) halves.insert(pattern);
    }
  }
  return {{"universal_checkpoint_version", 0.2},
          {"original_vocab_size", model.shape.vocab},
          {"padded_vocab_size", model.shape.PaddedVocab(topology.tp)},
          {"vocabulary_parameter_patterns", vocabulary},
          {"tp_replicated_parameter_patterns", replicated},
          {"parameter_with_row_parallelism_patterns", rows},
          {"parameter_with_2_sub_params_cat_dim_0", halves}};
}

nlohmann::json DeepSpeedConfig(const ZeroJob& job) {
  nlohmann::json config = {{"zero_optimization", {{"stage", job.topology.zero}}}};
  if (job.round_robin) config["zero_optimization"]["round_robin_gradients"] = true;
  if (job.state.params_dtype) config[Name(*job.state.params_dtype)] = {{"enabled", true}};
  return config;
}

}  // namespace

void EmitModelStates(PickleEmitter& pickle, const ZeroJob& job, const LocalModel& model,
                     const Model& described, const std::vector<LocalTensor>& held,
                     const std::function<void(std::string_view key)>& emit_frozen) {
  const TrainingState& state = job.state;
  const nlohmann::json schedule = state.schedule.empty() ? nlohmann::json() : state.schedule;
  // Below ZeRO 3 they are in the module with all others, unmarked; empty ones would be taken for all.
  const nlohmann::json entries = {{"buffer_names", nlohmann::json::array()},
                                  {"optimizer", nullptr},
                                  {"frozen_param_shapes", nullptr},
                                  {"frozen_param_fragments", nullptr},
                                  {"shared_params", state.shared_params},
                                  {"lr_scheduler", schedule},
                                  {"data_sampler", nullptr},
                                  {"random_ltd", nullptr},
                                  {"sparse_tensor_module_names", nlohmann::json::array()},
                                  {"skipped_steps", state.skipped},
                                  {"global_steps", state.iteration},
                                  {"global_samples", state.consumed_samples},
                                  {"dp_world_size", job.topology.dp},
                                  {"mp_world_size", job.topology.tp * job.topology.pp},
                                  {"ds_config", DeepSpeedConfig(job)},
                                  {"ds_version", kDeepSpeedVersion},
                                  {"iteration", state.iteration},
                                  {"tokens", state.consumed_tokens}};
  for (const auto& [key, value] : entries.items()) {
    pickle.Text(key);
    if (emit_frozen && key.starts_with("frozen_param_"))
      emit_frozen(key);
    else
      pickle.Json(value);
  }
  pickle.Text("param_shapes");
  EmitParamShapes(pickle, GroupsOf(job, held), held);
  if (model.names == LocalNames::kPlain) return;
  pickle.Entry("opt_param_scheduler", schedule);
  pickle.Entry("checkpoint_version", 3.0);
  nlohmann::json arguments = MegatronArguments(described, model.shape, job.topology);
  arguments["consumed_train_samples"] = state.consumed_samples;
  arguments["consumed_train_tokens"] = state.consumed_tokens;
  arguments["consumed_valid_samples"] = 0;
  arguments["iteration"] = state.iteration;
  pickle.Text("args");
  pickle.Arguments(arguments, job.tensors.weight_type());
  const nlohmann::json info = UniversalInfo(model, job.topology);
  pickle.Entry("checkpoint_info", {{"padded_vocab_size", info["padded_vocab_size"]},
                                   {"original_vocab_size", info["original_vocab_size"]}});
  pickle.Entry("universal_checkpoint_info", info);
}

}  // namespace cairn
