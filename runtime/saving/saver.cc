// One thread takes the saves one by one.

#include "runtime/saving/saver.h"

#include <algorithm>
#include <iterator>

#include "ckpt/base/this_process.h"
#include "ckpt/io/strict_json.h"
#include "ckpt/job/copies.h"
#include "ckpt/step/packed_shard_writer.h"
#include "ckpt/step/shard_copy.h"
#include "ckpt/step/shard_image.h"
#include "runtime/control/background_thread.h"
#include "runtime/control/watchdog.h"

namespace cairn {
namespace {

constexpr double kSlowSeconds = 1;
constexpr double kSlowTimesMedian = 4;

// One slow disk or node delays every commit, so report which.
void ReportSlowRank(const Save& save, const std::vector<double>& seconds) {
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  const double median = sorted[sorted.size() / 2], slowest = sorted.back();
  if (slowest < kSlowSeconds || slowest < kSlowTimesMedian * median) return;
  const auto rank = static_cast<int>(std::ranges::find(seconds, slowest) - seconds.begin());
  Say(fmt::format("checkpoint of iteration {}: {} took {:.1f} s to write its shard, the median rank {:.1f} s",
                  save.info.identity.step, Watchdog::Describe(rank), slowest, median));
}

// All ranks of this trainer begin with equal copies.
Status CompareCopies(Save& save, const std::vector<nlohmann::json>& notes) {
  Copies copies;
  for (size_t rank = 0; rank < notes.size(); ++rank) {
    if (!notes[rank].contains("copies")) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const nlohmann::json groups, ParseStrictJson(notes[rank].value("copies", "")));
    nlohmann::json contents = nlohmann::json::object();
    for (const auto& [group, sums] : groups.items()) contents[group] = sums.dump();
    copies.Add(static_cast<int>(rank), notes[rank].value("host", "?"), contents);
  }
  EqualCopies all(true);
  CAIRN_ASSIGN_OR_RETURN(
      const Copies::Verdict verdict,
      copies.Compare(all, [](int, const std::string& content) { return Result(content); }));
  save.alarm = verdict.alarm;
  return verdict.alarm.empty() || save.copies_may_differ ? OkStatus() : Aborted("{}", verdict.alarm);
}

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

Status Saver::Flush(Save& save) {
  const StepIdentity& identity = save.info.identity;
  JobSave job(fs_, messages_, config_.save, identity.step, save.nonce,
              {.lock = lock_, .beside = beside_, .retention = retention_});
  const Status made = job.MakePartial();
  const Result<ShardReceipt> receipt = made.ok() ? WriteShard(save, job.partial()) : made;
  save.written_seconds = SecondsSince(save.started);
  CAIRN_RETURN_IF_ERROR(job.Commit(PartOf(save, receipt), identity, [&](const std::vector<SavePart>& parts) {
    return SealOf(save, parts, views_);
  }));
  save.durable_seconds = SecondsSince(save.started);
  job.Retire(identity, [this](const Status& why) { leftovers_.Add(why); });
  return OkStatus();
}

Result<ShardReceipt> Saver::WriteShard(const Save& save, const std::string& directory) {
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

Result<SavePart> PartOf(const Save& save, const Result<ShardReceipt>& receipt) {
  CAIRN_RETURN_IF_ERROR(receipt.status());
  nlohmann::json note{{"seconds", save.written_seconds}, {"host", HostName()}};
  if (save.copies.valid()) note["copies"] = save.copies.get();
  return SavePart{.receipt = *receipt, .note = note.dump()};
}

Result<StepSeal> SealOf(Save& save, const std::vector<SavePart>& parts, H5Views& views) {
  std::vector<TensorEntry> tensors = *save.tensors;
  std::vector<ShardReceipt> receipts;
  std::vector<double> seconds;
  uint64_t nonfinite = 0;
  std::vector<nlohmann::json> notes;
  for (const SavePart& part : parts) {
    CAIRN_ASSIGN_OR_RETURN(notes.emplace_back(), ParseStrictJson(part.note));
    seconds.push_back(notes.back().value("seconds", 0.0));
    if (!part.receipt) return Corrupt("a rank has written no shard");
    std::ranges::copy_if(part.receipt->catalog.tensors, std::back_inserter(tensors),
                         [](const TensorEntry& tensor) { return tensor.role == Role::kRng; });
    nonfinite += part.receipt->nonfinite;
    receipts.push_back(*part.receipt);
  }
  ReportSlowRank(save, seconds);
  StepInfo info = save.info;
  CAIRN_RETURN_IF_ERROR(CompareCopies(save, notes));
  if (!save.alarm.empty()) info.history.push_back(save.alarm);
  if (const auto health = info.state.find("health"); health != info.state.end() && health->is_object())
    (*health)["nonfinite"] = nonfinite;
  return MakeSeal(info, tensors, receipts, &views);
}

}  // namespace cairn
