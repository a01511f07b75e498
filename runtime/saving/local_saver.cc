// A local save: each rank writes its shard from the snapshot, rank 0 makes the index and the manifest of all
// receipts, each directory gets a copy, and each rank writes its parity, which it computes from the others'
// snapshots in memory rather than from their files. Directories are published only after all ranks agree that
// everything is written. A save for the run directory then goes to the saver: as a drain, which reads the
// local step and frees the snapshot, or as itself.

#include "runtime/saving/local_saver.h"

#include <algorithm>

#include "ckpt/base/byte_codec.h"
#include "ckpt/job/job_ranks.h"
#include "ckpt/model/layout.h"
#include "runtime/control/console.h"

namespace cairn {

std::vector<int64_t> LocalStepsToRetire(const std::vector<StepFacts>& steps, int64_t keep_last) {
  std::vector<int64_t> retire;
  int64_t healthy = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const bool evidence = !step->unhealthy.empty() && healthy == 0;
    const bool counts = step->unhealthy.empty() && healthy++ < keep_last;
    if (!counts && !evidence) retire.push_back(step->step);
  }
  std::ranges::reverse(retire);
  return retire;
}

LocalSaver::LocalSaver(FileSystem& fs, const LocalPlace& place, Direct direct, Saver& saver,
                       std::unique_ptr<ControlPlane> control, PeerFiles& peers)
    : fs_(fs), place_(place), direct_(direct), saver_(saver), control_(std::move(control)), peers_(peers) {}

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

// Enters each collective even if an earlier one failed: ranks stay in step.
Status LocalSaver::Commit(Save& save) {
  Committer committer(fs_, place_.run_dir, save.info.identity.step, save.nonce);
  const Status made = committer.MakePartial();
  Result<ShardReceipt> receipt = made.ok() ? WriteSnapshot(fs_, committer.partial(), save, direct_) : made;
  save.written_seconds = SecondsSince(save.started);
  const Result<StepSeal> seal = Seal(save, receipt);
  Status status = Agree(*control_, WriteShare(save, committer, seal), "local save");
  if (status.ok()) {
    status = Agree(*control_, place_.leader ? committer.Publish() : OkStatus(), "local commit");
  }
  if (!status.ok()) {
    if (place_.leader) committer.Abandon();
    return status;
  }
  save.local_step = committer.step_dir();
  save.receipt = std::move(receipt).value();
  return OkStatus();
}

// Collective: rank 0 makes the seal of all parts; every rank gets it.
Result<StepSeal> LocalSaver::Seal(const Save& save, const Result<ShardReceipt>& receipt) {
  const Result<std::vector<SavePart>> parts = GatherParts(messages_, PartOf(save, receipt));
  const auto make = [&]() -> Result<std::string> {
    CAIRN_RETURN_IF_ERROR(parts.status());
    CAIRN_ASSIGN_OR_RETURN(const StepSeal seal, SealOf(save, *parts, views_));
    ByteWriter out;
    out.Put(static_cast<uint64_t>(seal.index.size()));
    out.PutRaw(seal.index);
    out.PutRaw(seal.manifest);
    return std::move(out).Take();
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string bytes, FromRoot(*control_, "local seal", make));
  ByteReader in(bytes);
  StepSeal seal;
  seal.index = in.GetRaw(in.Get<uint64_t>());
  seal.manifest = in.GetRaw(in.left());
  return seal;
}

// Collective: writes manifest, index, and this rank's parity. The others read this rank's shard from its
// snapshot.
Status LocalSaver::WriteShare(const Save& save, Committer& committer, const Result<StepSeal>& seal) {
  const int rank = control_->rank();
  Status status = seal.status();
  if (status.ok() && place_.leader) status = committer.Seal(*seal);
  if (place_.group.empty()) return status;
  const auto work = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(seal.status());  // the same on all ranks
    CAIRN_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(seal->manifest));
    std::vector<ParityGroup::Member> members;
    std::map<std::string, int> rank_of;
    for (int member : place_.group) {
      members.push_back({manifest.files[member].name, manifest.files[member].bytes});
      rank_of.emplace(members.back().shard, member);
    }
    CAIRN_ASSIGN_OR_RETURN(const ParityGroup group,
                           ParityGroup::Make(save.info.identity, std::move(members), place_.parity));
    const auto own = static_cast<int>(std::ranges::find(place_.group, rank) - place_.group.begin());
    return WriteParity(fs_, JoinPath(committer.partial(), ParityName(rank)), group, own,
                       FilesOf(group, rank_of, peers_));
  };
  const Status shared = peers_.Session({{ShardName(rank), {save.snapshot->image(), ""}}}, work);
  return status.ok() ? shared : status;
}

std::shared_ptr<Save> LocalSaver::DrainOf(const Save& save) const {
  auto drain = std::make_shared<Save>();
  drain->info = save.info;
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
  if (!place_.leader) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const RunSteps run, ReadRunSteps(fs_, place_.run_dir));
  for (int64_t step : LocalStepsToRetire(run.steps, place_.keep_last)) {
    const bool read =
        std::ranges::any_of(drains_, [&](const auto& drain) { return drain->info.identity.step == step; });
    if (read) continue;
    const Status retired = RetireStep(fs_, place_.run_dir, StepDirName(step), save.nonce, Shards::kSpread);
    if (!retired.ok()) leftovers_.Add(retired);
  }
  return RemoveSuperseded(fs_, place_.run_dir, save.nonce, Shards::kSpread,
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
