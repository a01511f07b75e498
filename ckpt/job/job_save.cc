#include "ckpt/job/job_save.h"

#include <utility>

#include "ckpt/base/byte_codec.h"
#include "ckpt/io/mount_points.h"
#include "ckpt/run/run_identity.h"
#include "ckpt/step/verify.h"

namespace cairn {
namespace {

Result<std::string> Encode(const Result<SavePart>& part) {
  CAIRN_RETURN_IF_ERROR(part.status());
  ByteWriter out;
  out.Put(static_cast<uint64_t>(part->note.size()));
  out.PutRaw(part->note);
  if (part->receipt) out.PutRaw(part->receipt->Encode());
  return std::move(out).Take();
}

Result<SavePart> Decode(std::string_view blob) {
  ByteReader in(blob);
  SavePart part{.receipt = {}, .note = std::string(in.GetRaw(in.Get<uint64_t>()))};
  if (!in.ok()) return Corrupt("truncated message between ranks");
  if (in.left() == 0) return part;
  CAIRN_ASSIGN_OR_RETURN(part.receipt, ShardReceipt::Decode(in.GetRaw(in.left())));
  return part;
}

}  // namespace

Result<HeldRun> HoldRun(FileSystem& fs, const std::string& run_dir, const LockWait& wait,
                        const std::function<void(const std::string& line)>& say) {
  const auto left = [&](const Status& why) { say("leftover not removed: " + why.message()); };
  CAIRN_ASSIGN_OR_RETURN(RunLock lock, RunLock::Hold(fs, run_dir, left, wait));
  if (const std::string why = LocalLocksWarning(run_dir); !why.empty()) say("warning: " + why);
  CAIRN_ASSIGN_OR_RETURN(OwnedRun owned, OwnRun(fs, run_dir));
  if (owned.before.ownership == Ownership::kCopied)
    say(fmt::format("{} is a copy of {}: from now on it is a separate run, {}", run_dir, owned.before.owner,
                    owned.run.substr(0, 8)));
  return HeldRun{std::move(lock), std::move(owned.run)};
}

// If several ranks failed, the first one is named.
Result<std::vector<std::string>> RankSaveMessages::Gather(const Result<std::string>& blob) {
  CAIRN_ASSIGN_OR_RETURN(
      std::vector<std::string> blobs,
      ranks_.GatherToRoot(EncodeOutcome(blob.status(), blob.ok() ? *blob : std::string_view()),
                          "shard receipts"));
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    Result<std::string> payload = DecodeOutcome(blobs[rank]);
    if (!payload.ok()) return payload.status().WithContext(ranks_.NameOf(static_cast<int>(rank)));
    blobs[rank] = *std::move(payload);
  }
  return blobs;
}

Status RankSaveMessages::Tell(const Status& outcome) {
  CAIRN_ASSIGN_OR_RETURN(const std::string told, ranks_.BroadcastFromRoot(EncodeOutcome(outcome), "commit"));
  return DecodeOutcome(told).status();
}

Result<std::vector<SavePart>> GatherParts(SaveMessages& messages, const Result<SavePart>& part) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, messages.Gather(Encode(part)));
  std::vector<SavePart> parts;
  for (const std::string& blob : blobs) {
    CAIRN_ASSIGN_OR_RETURN(SavePart each, Decode(blob));
    parts.push_back(std::move(each));
  }
  return parts;
}

JobSave::JobSave(FileSystem& fs, SaveMessages& messages, std::string run_dir, int64_t step, std::string nonce,
                 Options options)
    : fs_(fs),
      messages_(messages),
      run_dir_(std::move(run_dir)),
      nonce_(std::move(nonce)),
      options_(std::move(options)),
      committer_(fs, run_dir_, step, nonce_) {}

std::vector<std::string> JobSave::NamesBeside() const {
  std::vector<std::string> names;
  for (const BesideFile& file : options_.beside) names.push_back(file.name);
  return names;
}

Status JobSave::ReadBack(const ShardReceipt& receipt, const StepIdentity& identity) const {
  if (!options_.retention.enabled()) return OkStatus();
  const Status status = ReadBackShard(fs_, partial(), receipt, identity);
  if (status.ok()) return status;
  return {status.kind(), fmt::format("reading it back: {}; older steps are kept", status.message())};
}

// Takes every phase even if an earlier one failed: ranks may see different failures, and must stay in step.
Status JobSave::Commit(Result<SavePart> part, const StepIdentity& identity, const Sealer& seal) {
  if (part.ok() && part->receipt)
    if (const Status read = ReadBack(*part->receipt, identity); !read.ok()) part = read;
  Result<std::vector<SavePart>> parts = GatherParts(messages_, part);
  const Status committed = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(parts.status());
    if (!messages_.leads()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(StepSeal sealed, seal(*parts));
    return committer_.Commit(sealed, {.lock = options_.lock,
                                      .scratch = options_.scratch,
                                      .beside = options_.beside,
                                      .read_back = options_.retention.enabled()});
  }();
  if (!committed.ok() && messages_.leads() && !messages_.InPartial()) Abandon();
  return messages_.Tell(committed);
}

void JobSave::Retire(const StepIdentity& identity, const Complain& left) const {
  if (!messages_.leads()) return;
  RetentionPolicy policy = options_.retention;
  policy.run = identity.run;
  if (const Status retired = ApplyRetention(fs_, run_dir_, policy, nonce_, left); !retired.ok())
    left(retired);
}

}  // namespace cairn
