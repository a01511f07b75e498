#include "convert/reshape.h"

#include "convert/step_proof.h"

namespace cairn {
namespace {

constexpr uint64_t kProgramBytes = 16 << 20;

Result<TargetPlan> PlanOf(const CheckpointSource& source, const Topology& target) {
  return TargetPlan::Make(source.catalog().tensors, source.manifest().model, target);
}

}  // namespace

Result<ReshapeCost> EstimateReshape(const CheckpointSource& source, const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const TargetPlan plan, PlanOf(source, options.target));
  const StepSize size = EstimateStepSize(plan);
  const uint64_t window = 2 * BlockBytesFor(options.writer.max_memory) + options.writer.max_memory / 4;
  return ReshapeCost{.data_bytes = size.data_bytes,
                     .file_bytes = size.file_bytes,
                     .files = size.files,
                     .moved_bytes = 2 * size.data_bytes,
                     .peak_memory = kProgramBytes + window +
                                    std::min(ReaderCacheFor(options.writer.max_memory), size.data_bytes)};
}

Result<ReshapeResult> Reshape(FileSystem& fs, CheckpointSource& source, const std::string& run_dir,
                              const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const TargetPlan plan, PlanOf(source, options.target));
  const Manifest& manifest = source.manifest();
  const StepInfo info{.identity = {manifest.run, manifest.step},
                      .topology = options.target,
                      .model = manifest.model,
                      .state = manifest.state,
                      .history = manifest.history};
  CAIRN_ASSIGN_OR_RETURN(const auto builder, StepBuilder::Create(fs, run_dir, info, plan, options.writer));

  const uint64_t block_bytes = BlockBytesFor(options.writer.max_memory);
  uint64_t done = 0;
  const auto advance = [&](uint64_t bytes) {
    done += bytes;
    if (options.progress) options.progress(done);
  };
  StepFingerprint sums(source.catalog());
  source.SetCacheBytes(ReaderCacheFor(options.writer.max_memory));
  for (int stage = 0; stage < options.target.pp; ++stage) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> tensors, builder->BeginStage());
    CAIRN_RETURN_IF_ERROR(StreamBlocks(source, tensors, block_bytes, [&](const Block& block) {
      sums.Add(block);
      advance(block.bytes.size());
      return builder->Append(block);
    }));
    CAIRN_RETURN_IF_ERROR(builder->EndStage());
  }
  source.SetCacheBytes(0);  // the reader of the target has it now
  CAIRN_ASSIGN_OR_RETURN(const auto written, builder->Seal());
  CAIRN_RETURN_IF_ERROR(ProveStep(*written, sums, block_bytes, advance));
  CAIRN_RETURN_IF_ERROR(builder->Publish());
  return ReshapeResult{.directory = builder->final_path(),
                       .fingerprints = sums.Finish(),
                       .bytes_read = source.bytes_read(),
                       .bytes_written = written->manifest().bytes(),
                       .files = written->manifest().files.size() + 1};
}

}  // namespace cairn
