#include "convert/verbs/export.h"

#include <algorithm>
#include <set>

#include "convert/foreign/account.h"
#include "convert/formats/hugging_face/block_scaled.h"
#include "convert/formats/training/training_state.h"

namespace cairn {
namespace {

// Contents of cairn.json: provenance, and state that the format cannot hold.
std::string Record(const CheckpointSource& source, const System& format, const TargetFiles& plan) {
  const Manifest& manifest = source.manifest();
  std::vector<std::string> not_carried = plan.notes;
  for (const std::string& name : ValuesLeftBehind(source, plan.target.tensors)) not_carried.push_back(name);
  const nlohmann::ordered_json record = {{"cairn", CAIRN_VERSION},
                                         {"format", format.name},
                                         {"run", manifest.run},
                                         {"step", manifest.step},
                                         {"state", manifest.state},
                                         {"history", HistoryWith(manifest, format.name, plan.notes)},
                                         {"not_carried", std::move(not_carried)}};
  return record.dump(1) + "\n";
}

Status CheckHolds(const System& format, const CheckpointSource& source) {
  const auto& tensors = source.catalog().tensors;
  const auto expert = std::ranges::find_if(tensors, [](const auto& t) { return t.spec.of_experts; });
  if (format.experts || expert == tensors.end()) return OkStatus();
  return NotSupported(
      "{}: {} is of experts, which {} cannot hold yet; native, hf, dcp, torch-dist and safetensors can",
      source.name(), expert->spec.name, format.name);
}

// Errors: NotSupported naming an optimizer's state that is copied as bytes, and that the target has no place
// for.
Status CheckMoments(const CheckpointSource& source, const System& format, const StoredTarget& target) {
  std::set<uint32_t> written;
  for (const WrittenTensor& tensor : target.tensors) written.insert(tensor.source);
  const auto& tensors = source.catalog().tensors;
  for (uint32_t i = 0; i < tensors.size(); ++i)
    if (MayHoldMoments(tensors[i]) && !written.contains(i))
      return NotSupported(
          "{}: the optimizer's state {} has no place in {}; --allow optimizer takes the weights without it",
          source.name(), tensors[i].spec.name, format.name);
  return OkStatus();
}

}  // namespace

Result<Transfer> PlanExport(CheckpointSource& source, const System& format, const ExportOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckHolds(format, source));
  CAIRN_RETURN_IF_ERROR(CheckExpertsDivide(source.catalog().tensors, options.target.topology));
  Result<TargetFiles> planned = format.plan(source, options.target);
  if (!planned.ok()) CAIRN_RETURN_IF_ERROR(CheckReadable(source));
  if (!planned.ok()) return planned.status().WithContext(source.name());
  TargetFiles& plan = *planned;
  if (!options.target.allow_optimizer) CAIRN_RETURN_IF_ERROR(CheckMoments(source, format, plan.target));
  std::string record = Record(source, format, plan);
  const uint64_t bytes = record.size();
  plan.target.files.push_back({.name = "cairn.json", .bytes = bytes, .text = std::move(record)});
  FilesTarget files{
      .files = std::move(plan.target), .reader = std::string(format.reader), .directory = plan.directory};
  Transfer transfer(source, std::move(files), options.writer);
  transfer.cast.refuse_overflow = true;
  transfer.notes = std::move(plan.notes);
  return transfer;
}

}  // namespace cairn
