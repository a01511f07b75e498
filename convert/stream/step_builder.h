// Writes a native step of any topology from blocks of its tensors, stage by stage, within a window of memory.
//
// Only the shards of one pipeline stage are open at a time (stage_writer.h). The step is made under a partial
// name beside its final one, and removed if it is not published.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckpt/io/file_copies.h"
#include "ckpt/run/committer.h"
#include "ckpt/step/step_reader.h"
#include "convert/stream/stage_writer.h"
#include "convert/stream/tensor_stream.h"

namespace cairn {

struct StepBuilderOptions {
  // For the whole job beside the program itself: half of it for the reader's cache, a quarter for write
  // buffers, the rest for blocks. Kept from 64 MiB on; below, one chunk and a few buffers are needed anyway.
  uint64_t max_memory = kDefaultMaxMemory;
  int jobs = 2;  // threads that write
  Direct direct = Direct::kAuto;
  FileCopies beside = {};  // files of the step beside its tensors: its tokenizer
};

class StepBuilder final : public BlockTarget {
 public:
  // Takes the lock of `run_dir`, which is made if it is missing, checks the free space, makes the partial
  // directory. Errors: AlreadyExists if the step is there or another process writes into the directory;
  // NoSpace.
  static Result<std::unique_ptr<StepBuilder>> Create(FileSystem& fs, const std::string& run_dir,
                                                     const StepInfo& info, const StepPlan& plan,
                                                     const StepBuilderOptions& options);

  // Opens the shards of the next stage and returns the tensors that have pieces there, in catalog order.
  Result<std::vector<uint32_t>> BeginStage();
  // The next block of a tensor of this stage. `block.tensor` is an index into the plan's tensors.
  Status Write(const Block& block) override { return writer_->Append(block); }
  // Finishes the stage's shards: every tensor that BeginStage() returned must have been appended whole.
  Status EndStage();

  // After the last stage: writes index and manifest. Returns a reader of the step, to prove it.
  Result<std::unique_ptr<StepReader>> Seal();
  // Makes it the step.
  Status Publish() { return committer_->Publish(); }

  const std::string& final_path() const { return committer_->step_dir(); }

 private:
  StepBuilder(FileSystem& fs, StepInfo info, const StepPlan& plan, const StepBuilderOptions& options);

  FileSystem& fs_;
  const StepInfo info_;
  const StepPlan& plan_;
  const StepBuilderOptions options_;
  std::optional<Committer> committer_;
  int stage_ = 0;
  std::unique_ptr<WriteRing> ring_;  // outlives the writer, whose shards drain it before their files close
  std::unique_ptr<StageWriter> writer_;
  std::vector<ShardReceipt> receipts_;
};

// Bytes of a native step's files, estimated without laying them out: data, a page for each
// piece, and metadata. Never below the data.
struct StepSize {
  uint64_t data_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t files = 0;
};
StepSize EstimateStepSize(const StepPlan& plan);

}  // namespace cairn
