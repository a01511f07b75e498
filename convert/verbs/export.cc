// The format plans all files, cairn.json among them, before a byte is written. write_foreign.h writes them.

#include "convert/verbs/export.h"

#include "convert/formats/training/training_state.h"
#include "convert/stream/memory_estimate.h"
#include "convert/verbs/write_foreign.h"

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

Result<TargetFiles> PlanExport(const CheckpointSource& source, const System& format,
                               const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(TargetFiles plan, format.plan(source, options.target));
  NoteTrainingState(source, plan.notes);
  std::string record = Record(source, format, plan);
  const uint64_t bytes = record.size();
  plan.target.files.push_back({.name = "cairn.json", .bytes = bytes, .text = std::move(record)});
  return plan;
}

}  // namespace

Result<TransferCost> EstimateExport(const CheckpointSource& source, const System& format,
                                    const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const TargetFiles plan, PlanExport(source, format, options));
  CAIRN_ASSIGN_OR_RETURN(TransferCost cost, CostOfFiles(source, plan.target));
  const uint64_t window = options.writer.max_memory;
  const WriteRingOptions ring = ForeignRing(options.writer);
  const std::vector<uint32_t> tensors = SourcesOf(plan.target.tensors);
  cost.peak_memory = kProgramMemory + MemoryOfReading(source, tensors, BlockBytesFor(window), window) +
                     MemoryOfWriting(source, tensors, ring.buffer_bytes, ring.in_flight, 1);
  return cost;
}

Result<TransferResult> Export(FileSystem& fs, CheckpointSource& source, const System& format,
                              const std::string& target, const ExportOptions& options) {
  Result<TargetFiles> plan = PlanExport(source, format, options);
  if (!plan.ok()) return plan.status().WithContext(source.name());
  CAIRN_ASSIGN_OR_RETURN(TransferResult result,
                         WriteForeign(fs, source, std::move(plan->target), target,
                                      {.reader = std::string(format.reader),
                                       .directory = plan->directory,
                                       .stream = {.block_bytes = BlockBytesFor(options.writer.max_memory),
                                                  .refuse_overflow = true,
                                                  .advance = Accumulated(options.progress)},
                                       .writer = options.writer}));
  result.notes = std::move(plan->notes);
  return result;
}

}  // namespace cairn
