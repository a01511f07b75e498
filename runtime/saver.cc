#include "runtime/saver.h"

#include "ckpt/layout.h"
#include "ckpt/shard_copy.h"
#include "ckpt/shard_image.h"
#include "ckpt/verify.h"
#include "runtime/rank_message.h"

namespace cairn {
namespace {

std::string StagingDir(const SaverOptions& options, const Save& save) {
  return JoinPath(options.save_dir, PartialDirName(save.info.identity.step, save.nonce));
}

}  // namespace

void Save::Finish(Status outcome) {
  status = std::move(outcome);
  done = true;
  done.notify_all();
}

Saver::Saver(SaverOptions options, std::unique_ptr<ControlPlane> control)
    : options_(std::move(options)),
      control_(std::move(control)),
      queue_([this](const auto& save) { save->Finish(Flush(*save)); }) {}

Status Saver::Flush(Save& save) {
  const Result<ShardReceipt> receipt = WriteShard(save);
  const std::string blob =
      receipt.ok() ? EncodeOutcome(OkStatus(), receipt->Encode()) : EncodeOutcome(receipt.status());
  CAIRN_ASSIGN_OR_RETURN(const auto blobs, control_->GatherToRoot(blob, "shard receipts"));
  const Status committed = control_->rank() == 0 ? CommitAtRoot(save, blobs) : OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::string told,
                         control_->BroadcastFromRoot(EncodeOutcome(committed), "commit"));
  CAIRN_RETURN_IF_ERROR(DecodeOutcome(told).status());
  save.durable_seconds = std::chrono::duration<double>(Save::Clock::now() - save.started).count();
  if (options_.retention.enabled()) Retire(save, *receipt);
  return OkStatus();
}

Result<ShardReceipt> Saver::WriteShard(const Save& save) {
  const std::string directory = StagingDir(options_, save);
  CAIRN_RETURN_IF_ERROR(fs_.MakeDir(directory));
  if (save.local_step.empty()) return WriteSnapshot(fs_, directory, save, options_.direct);
  CAIRN_RETURN_IF_ERROR(
      CopyShard(fs_, save.local_step, directory, save.receipt, save.info.identity, options_.direct));
  return save.receipt;
}

Result<ShardReceipt> WriteSnapshot(FileSystem& fs, const std::string& directory, const Save& save,
                                   Direct direct) {
  Snapshot& snapshot = *save.snapshot;
  if (!snapshot.takes_digests()) snapshot.plan().Bind(save.info.identity);
  return WriteShardImage(fs, directory, snapshot.plan(), snapshot.image(),
                         {.direct = direct,
                          .take_digests = !snapshot.takes_digests(),
                          .wait_for = [&](uint64_t end) { snapshot.WaitFor(end); }});
}

Result<std::vector<ShardReceipt>> DecodeReceipts(const std::vector<std::string>& blobs,
                                                 std::vector<TensorEntry>& tensors) {
  std::vector<ShardReceipt> receipts;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const Result<std::string> payload = DecodeOutcome(blobs[rank]);
    if (!payload.ok()) return payload.status().WithContext(fmt::format("rank {}", rank));
    CAIRN_ASSIGN_OR_RETURN(ShardReceipt receipt, ShardReceipt::Decode(*payload));
    for (const TensorEntry& tensor : receipt.catalog.tensors)
      if (tensor.role == Role::kRng) tensors.push_back(tensor);
    receipts.push_back(std::move(receipt));
  }
  return receipts;
}

Status Saver::CommitAtRoot(const Save& save, const std::vector<std::string>& blobs) {
  const std::string directory = StagingDir(options_, save);
  const Status status = [&]() -> Status {
    std::vector<TensorEntry> tensors = *save.tensors;
    CAIRN_ASSIGN_OR_RETURN(const std::vector<ShardReceipt> receipts, DecodeReceipts(blobs, tensors));
    CAIRN_RETURN_IF_ERROR(SealStep(fs_, directory, save.info, tensors, receipts));
    return PublishStep(fs_, options_.save_dir, save.info.identity.step, save.nonce);
  }();
  if (!status.ok()) AbandonPartial(fs_, directory);
  return status;
}

// What older steps are deleted for must be more than written: each rank reads its own shard back first.
void Saver::Retire(const Save& save, const ShardReceipt& receipt) {
  const Status read = ReadBack(save, receipt);
  if (!read.ok()) Say(fmt::format("{}; older steps are kept", read.message()));
  const Result<bool> all_read = control_->AllTrue(read.ok(), "reading the step back");
  if (!all_read.ok() || !*all_read || control_->rank() != 0) return;
  const Status retired = ApplyRetention(fs_, options_.save_dir, options_.retention, save.nonce);
  if (!retired.ok()) Say("old steps not removed: " + retired.message());
}

Status Saver::ReadBack(const Save& save, const ShardReceipt& receipt) const {
  const std::string directory = JoinPath(options_.save_dir, StepDirName(save.info.identity.step));
  VerifyReport report;
  CAIRN_RETURN_IF_ERROR(VerifyShard(fs_, directory, receipt.file, receipt.catalog, 0, save.info.identity.run,
                                    save.info.identity.step, report));
  return report.problems.empty() ? OkStatus()
                                 : Corrupt("read back after writing: {}", ToString(report.problems[0]));
}

}  // namespace cairn
