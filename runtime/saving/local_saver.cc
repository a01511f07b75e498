// A save for the run directory goes to the saver after the local one: as a drain, which reads the local step
// and frees the snapshot, or as itself.

#include "runtime/saving/local_saver.h"

#include <algorithm>

#include "ckpt/job/job_ranks.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/local_branch.h"
#include "runtime/control/console.h"

namespace cairn {

LocalSaver::LocalSaver(FileSystem& fs, std::string run_dir, const LocalPlace& place, Direct direct,
                       Saver& saver, std::unique_ptr<ControlPlane> control, PeerFiles& peers)
    : fs_(fs),
      run_dir_(std::move(run_dir)),
      place_(place),
      direct_(direct),
      saver_(saver),
      control_(std::move(control)),
      peers_(peers) {}

// The saver gets the saves in the same order on all ranks, whatever the outcome of the local save on a rank.
void LocalSaver::Flush(const std::shared_ptr<Save>& save) {
  const Status status = Commit(*save);
  ReportChange(*save, status);
  if (!status.ok() && save->durable) return saver_.Start(save);
  if (status.ok()) {
    save->durable_seconds = SecondsSince(save->started);
    if (save->durable && saver_.copies_local_steps()) {
      save->drain = DrainOf(*save);
      drains_.push_back(save->drain);
      saver_.Start(save->drain);
    }
    const Status retired = Retire(*save);
    if (!retired.ok()) Say("old local steps not removed: " + retired.message());
    if (save->durable && !save->drain) {
      save->local_step.clear();
      return saver_.Start(save);
    }
  }
  save->Finish(status);
}

Status LocalSaver::Commit(Save& save) {
  LocalSave local(fs_, place_, *control_, peers_, save.info.identity, save.nonce);
  const Status made = local.MakePartial();
  Result<ShardReceipt> receipt = made.ok() ? WriteSnapshot(fs_, local.partial(), save, direct_) : made;
  save.written_seconds = SecondsSince(save.started);
  const auto seal = [&](const std::vector<SavePart>& parts) -> Result<StepSeal> {
    CAIRN_RETURN_IF_ERROR(
        NoteLocalBranch(fs_, run_dir_, save.info.identity.run, save.info.descent, noted_branch_));
    return SealOf(save, parts, views_);
  };
  CAIRN_RETURN_IF_ERROR(local.Commit(
      PartOf(save, receipt), {.files = {{ShardName(control_->rank()), {save.snapshot->image(), ""}}}}, seal));
  save.local_step = local.step_dir();
  save.receipt = std::move(receipt).value();
  return OkStatus();
}

std::shared_ptr<Save> LocalSaver::DrainOf(const Save& save) const {
  auto drain = std::make_shared<Save>();
  drain->info = save.info;
  if (!save.alarm.empty()) drain->info.history.push_back(save.alarm);
  drain->nonce = save.nonce;
  drain->tensors = save.tensors;
  drain->started = save.started;
  drain->local_step = save.local_step;
  drain->receipt = save.receipt;
  return drain;
}

// Also keeps steps that a drain still reads. A drain ends on all ranks at once, so the leader knows for all
// ranks that share its directory.
Status LocalSaver::Retire(const Save& save) {
  std::erase_if(drains_, [](const auto& drain) { return drain->done.load(); });
  const auto in_use = [this](int64_t step) {
    return std::ranges::any_of(drains_, [&](const auto& drain) { return drain->info.identity.step == step; });
  };
  return RetireLocalSteps(fs_, place_, save.nonce, in_use,
                          [this](const Status& why) { leftovers_.Add(why); });
}

// Reports when local saves begin to fail and when they work again, not each time.
void LocalSaver::ReportChange(const Save& save, const Status& status) {
  if (failing_ == !status.ok()) return;
  failing_ = !status.ok();
  if (control_->rank() != 0) return;
  if (failing_)
    Say(fmt::format("local checkpoint of iteration {} FAILED: {}; saves due for --save go there directly",
                    save.info.identity.step, status.message()));
  else
    Say(fmt::format("local checkpoints work again (iteration {})", save.info.identity.step));
}

}  // namespace cairn
