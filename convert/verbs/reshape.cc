#include "convert/verbs/reshape.h"

#include <algorithm>

#include "ckpt/families/foreign_model.h"
#include "convert/formats/hugging_face/block_scaled.h"

namespace cairn {
namespace {

std::vector<TensorEntry> TargetTensors(const CheckpointSource& source, const ReshapeOptions& options) {
  std::vector<TensorEntry> tensors = source.catalog().tensors;
  for (TensorEntry& tensor : tensors)
    for (Cut& cut : tensor.spec.cuts)
      if (options.vocab_multiple > 0 && cut.pad > 0) cut.pad = options.vocab_multiple;
  return tensors;
}

// A model of unknown family would be whole on each tensor parallel rank, all of it on the first stage.
Status CheckKnownCuts(const CheckpointSource& source, const Topology& target) {
  const auto& tensors = source.catalog().tensors;
  const Topology& now = source.manifest().topology;
  CAIRN_RETURN_IF_ERROR(CheckExpertsDivide(tensors, target).WithContext(source.name()));
  const bool cut =
      std::ranges::any_of(tensors, [](const auto& t) { return !t.spec.of_experts && !t.spec.cuts.empty(); });
  if (target.tp > 1 && target.tp != now.tp && !cut)
    return InvalidArgument(
        "{}: its tensors do not record how they are cut, so TP={} is not possible; use TP=1", source.name(),
        target.tp);
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
  if (const Status known = CheckKnownCuts(source, options.target); !known.ok()) {
    CAIRN_RETURN_IF_ERROR(CheckReadable(source));
    const std::string family = FamilyWithoutTable(source.manifest().model);
    return family.empty() ? known : known.WithContext(fmt::format("the family {} is unknown", family));
  }
  return StepPlan::Make(TargetTensors(source, options), source.manifest().model, options.target);
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
