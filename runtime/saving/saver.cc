// One thread takes the saves one by one: shard, receipts to rank 0, reading back if older steps are to go,
// commit, outcome to all, retention. Only rank 0 commits and deletes. A rank that failed sends its error in
// place of a receipt and takes part in everything that follows, because the others wait for it.

#include "runtime/saving/saver.h"

#include <algorithm>
#include <bit>

#include "ckpt/base/byte_codec.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/packed_shard_writer.h"
#include "ckpt/step/shard_copy.h"
#include "ckpt/step/shard_image.h"
#include "ckpt/step/verify.h"
#include "runtime/control/background_thread.h"
#include "runtime/control/rank_message.h"
#include "runtime/control/watchdog.h"

namespace cairn {
namespace {

constexpr double kSlowSeconds = 1;
constexpr double kSlowTimesMedian = 4;

}  // namespace

// An exception ends the process: other ranks would wait for the saves that follow.
void FlushInBackground(WorkerPool& queue, std::function<void()> flush) {
  (void)queue.Push([flush = std::move(flush)](size_t) noexcept {
    BecomeBackgroundThread();
    flush();
    return OkStatus();
  });
}

void Save::Finish(Status outcome) {
  status = std::move(outcome);
  done = true;
  done.notify_all();
}

Saver::Saver(const CheckpointerOptions& options, const RunLock* lock, std::vector<BesideFile> beside,
             std::unique_ptr<ControlPlane> control)
    : config_(options.config),
      direct_(options.direct),
      lock_(lock),
      beside_(std::move(beside)),
      control_(std::move(control)),
      fs_(options.fs),
      retention_{.keep_last = config_.keep_last,
                 .keep_every = config_.keep_every,
                 .keep_tokens = config_.keep_tokens,
                 .keep_epochs = config_.keep_epochs,
                 .keep_best = config_.keep_best},
      codec_(config_.save_codec, config_.save_codec_threads) {}

Committer Saver::CommitterOf(const Save& save) const {
  return Committer(fs_, config_.save, save.info.identity.step, save.nonce);
}

// Takes every step of the control plane even if an earlier one failed: ranks may see different failures, and
// must stay in step for the next save.
Status Saver::Flush(Save& save) {
  const Result<ShardReceipt> receipt = WriteShard(save);
  save.written_seconds = SecondsSince(save.started);
  const auto blobs = control_->GatherToRoot(EncodeWritten(save, receipt), "shard receipts");
  Status read;
  if (retention_.enabled())
    read = Agree(*control_, receipt.ok() ? ReadBack(save, *receipt) : receipt.status(), "reading it back");
  const auto commit = [&]() -> Result<std::string> {
    CAIRN_RETURN_IF_ERROR(CommitAtRoot(save, blobs, read));
    return std::string();
  };
  CAIRN_RETURN_IF_ERROR(FromRoot(*control_, "commit", commit).status());
  save.durable_seconds = SecondsSince(save.started);
  if (retention_.enabled() && control_->rank() == 0) Retire(save);
  return OkStatus();
}

std::vector<std::string> Saver::NamesBeside() const {
  std::vector<std::string> names;
  for (const BesideFile& file : beside_) names.push_back(file.name);
  return names;
}

Result<ShardReceipt> Saver::WriteShard(const Save& save) {
  Committer committer = CommitterOf(save);
  CAIRN_RETURN_IF_ERROR(committer.MakePartial(NamesBeside()));
  const std::string& directory = committer.partial();
  if (!save.local_step.empty()) {
    CAIRN_RETURN_IF_ERROR(
        CopyShard(fs_, save.local_step, directory, save.receipt, save.info.identity, direct_));
    return save.receipt;
  }
  Snapshot& snapshot = *save.snapshot;
  CAIRN_ASSIGN_OR_RETURN(const bool compress, codec_.ShouldCompress([&] { return SampleCodec(snapshot); }));
  const auto start = Save::Clock::now();
  Result<ShardReceipt> receipt = compress || config_.split_master
                                     ? WritePacked(directory, save, compress)
                                     : WriteSnapshot(fs_, directory, save, direct_);
  if (receipt.ok()) codec_.NoteFlush(compress, snapshot.plan().file_bytes(), SecondsSince(start));
  return receipt;
}

Result<ShardReceipt> Saver::WritePacked(const std::string& directory, const Save& save, bool compress) {
  Snapshot& snapshot = *save.snapshot;
  CAIRN_RETURN_IF_ERROR(snapshot.WaitFor(snapshot.image().size()));
  if (!snapshot.takes_digests()) snapshot.plan().Bind(save.info.identity);
  return WritePackedImage(
      fs_, directory, snapshot.plan(), snapshot.image(),
      {.pack = {.direct = direct_, .threads = config_.save_codec_threads, .encode = compress},
       .split_master = config_.split_master});
}

Result<ShardReceipt> WriteSnapshot(FileSystem& fs, const std::string& directory, const Save& save,
                                   Direct direct) {
  Snapshot& snapshot = *save.snapshot;
  if (!snapshot.takes_digests()) snapshot.plan().Bind(save.info.identity);
  return WriteShardImage(fs, directory, snapshot.plan(), snapshot.image(),
                         {.direct = direct,
                          .take_digests = !snapshot.takes_digests(),
                          .wait_for = [&](uint64_t end) { return snapshot.WaitFor(end); }});
}

std::string EncodeWritten(const Save& save, const Result<ShardReceipt>& receipt) {
  if (!receipt.ok()) return EncodeOutcome(receipt.status());
  ByteWriter out;
  out.Put(std::bit_cast<uint64_t>(save.written_seconds));
  out.PutRaw(receipt->Encode());
  return EncodeOutcome(OkStatus(), std::move(out).Take());
}

Result<WrittenShards> DecodeWritten(const Save& save, const std::vector<std::string>& blobs) {
  WrittenShards written;
  written.tensors = *save.tensors;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const Result<std::string> payload = DecodeOutcome(blobs[rank]);
    if (!payload.ok()) return payload.status().WithContext(Watchdog::Name(static_cast<int>(rank)));
    ByteReader in(*payload);
    written.seconds.push_back(std::bit_cast<double>(in.Get<uint64_t>()));
    CAIRN_ASSIGN_OR_RETURN(ShardReceipt receipt, ShardReceipt::Decode(in.GetRaw(in.left())));
    for (const TensorEntry& tensor : receipt.catalog.tensors)
      if (tensor.role == Role::kRng) written.tensors.push_back(tensor);
    written.receipts.push_back(std::move(receipt));
  }
  return written;
}

StepInfo InfoOf(const Save& save, const WrittenShards& written) {
  StepInfo info = save.info;
  const auto health = info.state.find("health");
  if (health == info.state.end() || !health->is_object()) return info;
  uint64_t nonfinite = 0;
  for (const ShardReceipt& receipt : written.receipts) nonfinite += receipt.nonfinite;
  (*health)["nonfinite"] = nonfinite;
  return info;
}

// `read`: what reading the shards back has shown.
Status Saver::CommitAtRoot(const Save& save, const Result<std::vector<std::string>>& blobs,
                           const Status& read) {
  Committer committer = CommitterOf(save);
  const Status status = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(blobs.status());
    CAIRN_ASSIGN_OR_RETURN(const WrittenShards written, DecodeWritten(save, *blobs));
    NameSlowRank(save, written.seconds);
    CAIRN_RETURN_IF_ERROR(read);
    CAIRN_ASSIGN_OR_RETURN(StepSeal seal,
                           MakeSeal(InfoOf(save, written), written.tensors, written.receipts, &views_));
    return committer.Commit(seal, {.lock = lock_, .beside = beside_, .read_back = retention_.enabled()});
  }();
  if (!status.ok()) committer.Abandon(NamesBeside());
  return status;
}

// One slow disk or node delays every commit, so report which.
void Saver::NameSlowRank(const Save& save, const std::vector<double>& seconds) const {
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  const double median = sorted[sorted.size() / 2], slowest = sorted.back();
  if (slowest < kSlowSeconds || slowest < kSlowTimesMedian * median) return;
  const auto rank = static_cast<int>(std::ranges::find(seconds, slowest) - seconds.begin());
  Say(fmt::format("checkpoint of iteration {}: {} took {:.1f} s to write its shard, the median rank {:.1f} s",
                  save.info.identity.step, Watchdog::Describe(rank), slowest, median));
}

void Saver::Retire(const Save& save) {
  RetentionPolicy policy = retention_;
  policy.run = save.info.identity.run;
  const Status retired = ApplyRetention(fs_, config_.save, policy, save.nonce,
                                        [this](const Status& why) { leftovers_.Add(why); });
  if (!retired.ok()) Say("old steps not removed: " + retired.message());
}

Status Saver::ReadBack(const Save& save, const ShardReceipt& receipt) const {
  const Status status = ReadBackShard(fs_, CommitterOf(save).partial(), receipt, save.info.identity);
  if (status.ok()) return status;
  return {status.kind(), fmt::format("reading it back: {}; older steps are kept", status.message())};
}

}  // namespace cairn
