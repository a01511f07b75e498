#include "convert/verbs/reshape.h"

#include <algorithm>

#include "ckpt/families/foreign_model.h"
#include "ckpt/families/memory_names.h"
#include "convert/formats/hugging_face/block_scaled.h"

namespace cairn {
namespace {

bool IsCut(const std::vector<TensorEntry>& tensors) {
  return std::ranges::any_of(tensors,
                             [](const auto& t) { return !t.spec.of_experts && !t.spec.cuts.empty(); });
}

// Cuts a model that keeps its names as transformers does. `why`: what it lacks for that.
void CutByPlan(const Model& model, std::vector<TensorEntry>& tensors, std::string& why) {
  const nlohmann::json& config = model.Get("config");
  if (model.architecture || !config.is_object()) return;
  const TypeCuts cuts = CutsOfType(config);
  why = cuts.why;
  std::map<std::string, Dims> weights;
  for (const TensorEntry& tensor : tensors)
    if (!IsOptimizerState(tensor.role)) weights.emplace(tensor.spec.name, tensor.spec.shape);
  for (TensorEntry& tensor : tensors) {
    const auto cut = cuts.dimensions.find(NumberedName(tensor.spec.name).pattern);
    const auto weight = weights.find(tensor.spec.name);
    if (cut == cuts.dimensions.end() || cut->second >= tensor.spec.shape.rank() ||
        (weight != weights.end() && weight->second != tensor.spec.shape))
      continue;
    tensor.spec.cuts = {{.axis = Axis::kTp, .dim = static_cast<int8_t>(cut->second)}};
  }
}

// `why`: what tensors that should be cut lack.
std::vector<TensorEntry> TargetTensors(const CheckpointSource& source, const ReshapeOptions& options,
                                       std::string& why) {
  std::vector<TensorEntry> tensors = source.catalog().tensors;
  if (options.target.tp > 1 && !IsCut(tensors)) CutByPlan(source.manifest().model, tensors, why);
  for (TensorEntry& tensor : tensors)
    for (Cut& cut : tensor.spec.cuts)
      if (options.vocab_multiple > 0 && cut.pad > 0) cut.pad = options.vocab_multiple;
  return tensors;
}

// A model of unknown family would be whole on each tensor parallel rank, all of it on the first stage.
Status CheckKnownCuts(const CheckpointSource& source, const std::vector<TensorEntry>& tensors,
                      const std::string& why, const Topology& target) {
  const Topology& now = source.manifest().topology;
  CAIRN_RETURN_IF_ERROR(CheckExpertsDivide(tensors, target).WithContext(source.name()));
  if (target.tp > 1 && target.tp != now.tp && !IsCut(tensors))
    return InvalidArgument(
        "{}: its tensors do not record how they are cut{}, so TP={} is not possible; use TP=1", source.name(),
        why.empty() ? "" : fmt::format(" ({})", why), target.tp);
  const bool layers =
      std::ranges::any_of(tensors, [](const auto& t) { return t.spec.layer != kBeforeLayers; });
  if (target.pp > 1 && target.pp != now.pp && !layers)
    return InvalidArgument(
        "{}: its tensors do not record which layer they belong to, so PP={} is not possible; use PP=1",
        source.name(), target.pp);
  return OkStatus();
}

}  // namespace

Result<StepPlan> PlanShards(const CheckpointSource& source, const ReshapeOptions& options) {
  std::string why;
  // transformers' plan cuts weights, and not the integers or scales that a method makes of them.
  if (options.target.tp > 1 && !IsCut(source.catalog().tensors)) CAIRN_RETURN_IF_ERROR(CheckReadable(source));
  const std::vector<TensorEntry> tensors = TargetTensors(source, options, why);
  if (const Status known = CheckKnownCuts(source, tensors, why, options.target); !known.ok()) {
    CAIRN_RETURN_IF_ERROR(CheckReadable(source));
    const std::string family = FamilyWithoutTable(source.manifest().model);
    return family.empty() ? known : known.WithContext(fmt::format("the family {} is unknown", family));
  }
  return StepPlan::Make(tensors, source.manifest().model, options.target);
}

Result<Transfer> PlanReshape(CheckpointSource& source, const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(StepPlan plan, PlanShards(source, options));
  StepInfo info = StepInfo::Of(source.manifest(), options.target);
  if (!options.read_back)
    info.history.push_back({{"verb", "reshape"}, {"allowed", nlohmann::json::array({"no-read-back"})}});
  std::vector<WrittenTensor> tensors;
  for (uint32_t i = 0; i < plan.tensors().size(); ++i) tensors.push_back({i, plan.tensors()[i]});
  StepTarget target{.info = std::move(info),
                    .tensors = std::move(tensors),
                    .plan = std::move(plan),
                    .job = fmt::format("{}|{}|{}", EncodeManifest(source.manifest()),
                                       ToString(options.target), options.vocab_multiple),
                    .resume = options.resume,
                    .read_back = options.read_back,
                    .unit_bytes = options.unit_bytes,
                    .team = options.team};
  return Transfer(source, std::move(target), options.writer);
}

}  // namespace cairn
