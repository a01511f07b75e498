#include "convert/verbs/export.h"

#include "convert/formats/training/training_state.h"

namespace cairn {
namespace {

// Contents of cairn.json: provenance, and state that the format cannot hold.
std::string Record(const CheckpointSource& source, const System& format, const TargetFiles& plan) {
  const Manifest& manifest = source.manifest();
  const nlohmann::ordered_json record = {
      {"cairn", CAIRN_VERSION},   {"format", format.name},
      {"run", manifest.run},      {"step", manifest.step},
      {"state", manifest.state},  {"history", HistoryWith(manifest, format.name, plan.notes)},
      {"not_carried", plan.notes}};
  return record.dump(1) + "\n";
}

// Notes the training's own state. Random states are noted by the formats.
void NoteTrainingState(const CheckpointSource& source, std::vector<std::string>& notes) {
  std::string names;
  for (const TensorEntry& tensor : source.catalog().tensors)
    if (IsOpaque(tensor.role) && tensor.role != Role::kRng)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", DisplayName(tensor));
  if (!names.empty()) notes.push_back("the training's own state is not carried: " + names);
}

}  // namespace

Result<Transfer> PlanExport(CheckpointSource& source, const System& format, const ExportOptions& options) {
  Result<TargetFiles> planned = format.plan(source, options.target);
  if (!planned.ok()) return planned.status().WithContext(source.name());
  TargetFiles& plan = *planned;
  NoteTrainingState(source, plan.notes);
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
