// Files in addition to those of the rendezvous: "team-table-DIGEST" and "team-group-DIGEST" hold contents
// that ranks share, once each. A rank leaves rank 0 their names, with the receipt of its shard.

#include "tools/serve/step_save.h"

#include <algorithm>
#include <cstdio>
#include <future>
#include <iterator>
#include <set>
#include <utility>

#include "ckpt/base/canonical_path.h"
#include "ckpt/io/fresh_names.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/run_identity.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/packed_shard_writer.h"
#include "ckpt/step/shard_image.h"

namespace cairn {
namespace {

constexpr double kMaxPatience = 1e9;  // seconds; clocks hold twice as many
constexpr uint64_t kMaxTeamFileBytes = uint64_t{1} << 32;
constexpr int kShortPatience = 10;  // the part of it that remains once the trainer has ended

void Report(const std::string& line) { std::fputs(fmt::format("cairn: {}\n", line).c_str(), stderr); }

std::string ContentName(std::string_view kind, std::string_view bytes) {
  return fmt::format("team-{}-{}", kind, ToHex(DigestOf(bytes)));
}

// A hole or an overlap happens when ranks hold a tensor differently from what the ownership rule assumes.
Status UncoveredTensor(const Status& why) {
  if (why.kind() != StatusKind::kCorrupt) return why;
  return InvalidArgument(
      "{}; replicas= names the ranks that hold the same, for a plain tensor that only some ranks have and "
      "for HYBRID_SHARD of FSDP1",
      why.message());
}

}  // namespace

Result<SaveRequest> SaveRequest::Parse(const nlohmann::json& said) {
  SaveRequest request{.run_dir = said.at("run").get<std::string>(),
                      .nonce = said.at("nonce").get<std::string>()};
  CAIRN_ASSIGN_OR_RETURN(request.step, IntegerAt<int64_t>(said, "step"));
  CAIRN_ASSIGN_OR_RETURN(request.rank, IntegerAt<int>(said, "rank"));
  CAIRN_ASSIGN_OR_RETURN(request.world, IntegerAt<int>(said, "world"));
  const double patience = said.value("deadline", 600.0);
  if (!(patience > 0 && patience <= kMaxPatience)) return Corrupt("a deadline of {} s", patience);
  request.patience = std::chrono::seconds(static_cast<int64_t>(patience));
  if (request.run_dir.empty() || request.step < 0 ||
      !ParseMarkedDirName(PartialDirName(request.step, request.nonce)) || request.rank < 0 ||
      request.rank >= request.world || request.world > kMaxWorld)
    return Corrupt("a save of step {} by rank {} of {} in \"{}\"", request.step, request.rank, request.world,
                   request.run_dir);
  return request;
}

Status HeldRuns::Hold(FileSystem& fs, const std::string& run_dir, const Patience& patience) {
  if (const auto held = runs_.find(CanonicalPath(run_dir)); held != runs_.end()) {
    if (held->second.lock.CheckPlace().ok()) return held->second.lock.CheckHeld();
    runs_.erase(held);  // removed or moved away between two saves: the new directory is another run
  }
  const auto waiting = [](const Status& held, std::chrono::seconds more) {
    Report(fmt::format("a save waits, for up to {} s more: {}", more.count(), held.message()));
  };
  CAIRN_ASSIGN_OR_RETURN(HeldRun ours, HoldRun(fs, run_dir, {patience, waiting}, Report));
  CAIRN_ASSIGN_OR_RETURN(RunSteps steps, ReadRunSteps(fs, run_dir));
  auto& run =
      runs_.emplace(CanonicalPath(run_dir), Run{std::move(ours.lock), std::move(steps.newest), {}, {}})
          .first->second;
  if (auto limits = LimitsAt(fs, run_dir); limits.ok()) run.limits = *std::move(limits);
  return OkStatus();
}

Result<HeldRuns::Run*> HeldRuns::At(const std::string& run_dir) {
  const auto held = runs_.find(CanonicalPath(run_dir));
  if (held == runs_.end()) return Aborted("{} leads to a different directory since the save began", run_dir);
  return &held->second;
}

void HeldRuns::RemoveFailed() {
  for (Committer& save : std::exchange(failed_, {})) save.Abandon();
}

StepSave::StepSave(FileSystem& fs, HeldRuns& runs, Origins& origins, SaveRequest request,
                   const std::atomic<bool>& trainer_ended)
    : fs_(fs),
      runs_(runs),
      origins_(origins),
      request_(std::move(request)),
      patience_([&trainer_ended, full = request_.patience] {
        return trainer_ended ? std::max(std::chrono::seconds(1), full / kShortPatience) : full;
      }),
      committer_(fs, request_.run_dir, request_.step, request_.nonce),
      rendezvous_(fs, committer_.partial(),
                  {.rank = request_.rank,
                   .size = request_.world,
                   .launch = request_.nonce,
                   .once = true,
                   .start_patience = patience_,
                   .patience = patience_,
                   .news = [this] { return News(); }}) {}

Status StepSave::Begin() {
  if (!leads()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(runs_.Hold(fs_, request_.run_dir, patience_));
  CAIRN_RETURN_IF_ERROR(committer_.MakePartial());
  return rendezvous_.Begin();
}

// The values are small: handled after the copy, for which the training waits, they are still on disk before
// the shard is.
Status StepSave::WriteShard(SavePlan& plan, const SaveValues& values, const SaveOptions& options,
                            const std::function<Status(uint64_t end)>& wait_for) {
  if (!leads()) CAIRN_RETURN_IF_ERROR(rendezvous_.Begin());
  entered_ = true;
  CAIRN_RETURN_IF_ERROR(rendezvous_.Check());
  JobSave::Options job{.scratch = IsTeamFileName, .retention = options.retention};
  if (leads()) {
    CAIRN_RETURN_IF_ERROR(CheckSpace(plan, options));
    CAIRN_ASSIGN_OR_RETURN(HeldRuns::Run* const run, runs_.At(request_.run_dir));
    job.lock = &run->lock;
  }
  job_.emplace(fs_, static_cast<SaveMessages&>(*this), request_.run_dir, request_.step, request_.nonce,
               std::move(job));
  (void)fs_.List(request_.run_dir);  // the run's owner may not have existed when this host last looked
  CAIRN_ASSIGN_OR_RETURN(const RunIdentity run, IdentifyRun(fs_, request_.run_dir));
  identity_ = {run.run, request_.step};
  std::future<Status> handling = std::async([&] {
    CAIRN_RETURN_IF_ERROR(wait_for(plan.memory.bytes().size()));
    return HandleValues(plan, values);
  });
  const Status written = WriteOwnShard(plan, options, wait_for);
  const Status handled = handling.get();
  return written.ok() ? handled : written;
}

// At the first save into a run; other ranks may already be writing their shards. Rank 0 knows the whole
// tensors of which it holds a part: not those of other pipeline stages. Besides a shard a rank, a step has
// two of values, the index and the manifest.
Status StepSave::CheckSpace(const SavePlan& plan, const SaveOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(HeldRuns::Run* const run, runs_.At(request_.run_dir));
  if (run->limits.empty()) return OkStatus();
  Room step{.files = static_cast<uint64_t>(request_.world) + 4};
  for (const StateTensor& tensor : plan.tensors) step.bytes += tensor.entry.bytes();
  const Status room = CheckRoomForSteps(fs_, request_.run_dir, step, run->limits);
  if (!room.ok() && options.require_space) {
    CAIRN_ASSIGN_OR_RETURN(run->limits, LimitsAt(fs_, request_.run_dir));
    return room;
  }
  if (room.kind() == StatusKind::kNoSpace) Report("warning: " + room.message());
  run->limits.clear();
  return OkStatus();
}

Status StepSave::WriteOwnShard(SavePlan& plan, const SaveOptions& options,
                               const std::function<Status(uint64_t end)>& wait_for) {
  if (!plan.shard) return OkStatus();
  plan.shard->Bind(identity_);
  const std::span<std::byte> image = plan.memory.bytes();
  if (options.compress) CAIRN_RETURN_IF_ERROR(wait_for(image.size()));
  CAIRN_ASSIGN_OR_RETURN(part_.receipt, options.compress
                                            ? WritePackedImage(fs_, committer_.partial(), *plan.shard, image)
                                            : WriteShardImage(fs_, committer_.partial(), *plan.shard, image,
                                                              {.wait_for = wait_for}));
  return OkStatus();
}

Status StepSave::HandleValues(SavePlan& plan, const SaveValues& values) {
  if (!alone()) return LeaveValues(plan, values);
  CAIRN_RETURN_IF_ERROR(state_dict_.Add(0, plan.tensors));
  for (const Packet& group : values.groups) CAIRN_RETURN_IF_ERROR(state_dict_.Add(0, group));
  CAIRN_RETURN_IF_ERROR(state_dict_.Close());
  return WriteContents(plan);
}

// Ranks that have the same bytes leave them once; a later rank finds the file, or writes the same bytes
// again.
Result<std::string> StepSave::LeaveContent(std::string_view kind, std::string_view bytes) {
  const std::string name = ContentName(kind, bytes);
  const std::string path = JoinPath(committer_.partial(), name);
  if (fs_.Stat(path).ok()) return name;
  CAIRN_RETURN_IF_ERROR(WriteAndRename(fs_, fmt::format("{}.{:05}", path, request_.rank), path, bytes));
  return name;
}

Status StepSave::LeaveValues(const SavePlan& plan, const SaveValues& values) {
  nlohmann::json left{{"groups", nlohmann::json::array()}, {"copies", nlohmann::json::object()}};
  CAIRN_ASSIGN_OR_RETURN(left["table"], LeaveContent("table", plan.table));
  for (const Packet& group : values.groups) {
    CAIRN_ASSIGN_OR_RETURN(std::string name, LeaveContent("group", EncodePacket(group)));
    left["groups"].push_back(std::move(name));
  }
  for (const auto& [group, digests] : values.copies.items()) {
    CAIRN_ASSIGN_OR_RETURN(left["copies"][group], LeaveContent("copies", digests.dump()));
  }
  part_.note = left.dump();
  return OkStatus();
}

Status StepSave::Finish(SavePlan& plan, const SaveOptions& options) {
  HeldRuns::Run* run = nullptr;  // on rank 0
  if (leads()) {
    CAIRN_ASSIGN_OR_RETURN(run, runs_.At(request_.run_dir));
  }
  const auto seal = [&](std::vector<SavePart>& parts) { return Seal(plan, options, run->newest, parts); };
  CAIRN_RETURN_IF_ERROR(job_->Commit(part_, identity_, seal));
  if (run == nullptr) return OkStatus();
  run->newest = commit_;
  origins_.Saved(commit_, plan.names, options.when);
  return OkStatus();
}

Result<std::vector<std::string>> StepSave::Gather(const Result<std::string>& blob) {
  CAIRN_RETURN_IF_ERROR(blob.status());
  return rendezvous_.GatherToRoot(*blob);
}

// The name of the step tells the others.
Status StepSave::Tell(const Status& outcome) {
  if (leads() || !outcome.ok()) return outcome;
  // Rank 0 waits as long for the slowest rank, and commits after that.
  const Patience twice = [this] { return 2 * patience_(); };
  return rendezvous_.AwaitPublished(twice, [this] { return IsCommitted(); });
}

Result<std::string> StepSave::ReadTeamFile(const std::string& name) const {
  if (!IsPlainFileName(name) || !IsTeamFileName(name)) return Corrupt("{}: not a file of a team", name);
  return ReadSmallFile(fs_, JoinPath(committer_.partial(), name), kMaxTeamFileBytes);
}

// Contents that ranks share are read once, for the first rank that names them.
Status StepSave::MergeParts(const SavePlan& plan, const std::vector<SavePart>& parts) {
  std::set<std::string> seen;
  const std::string own_table = ContentName("table", plan.table);
  for (int rank = 0; rank < request_.world; ++rank) {
    const auto left = nlohmann::json::parse(parts[rank].note);
    const auto table = left.at("table").get<std::string>();
    if (table == own_table) {
      if (seen.insert(table).second) CAIRN_RETURN_IF_ERROR(state_dict_.Add(rank, plan.tensors));
    } else if (seen.insert(table).second) {
      CAIRN_ASSIGN_OR_RETURN(const std::string rows, ReadTeamFile(table));
      CAIRN_ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, DecodeTable(rows));
      CAIRN_RETURN_IF_ERROR(state_dict_.Add(rank, tensors));
    }
    for (const auto& name : left.at("groups").get<std::vector<std::string>>()) {
      if (!seen.insert(name).second) continue;
      CAIRN_ASSIGN_OR_RETURN(const std::string packed, ReadTeamFile(name));
      CAIRN_ASSIGN_OR_RETURN(const Packet group, DecodePacket(packed));
      CAIRN_RETURN_IF_ERROR(state_dict_.Add(rank, group));
    }
    CAIRN_RETURN_IF_ERROR(
        copies_.Add(rank, left.at("copies"), [this](const std::string& name) { return ReadTeamFile(name); }));
  }
  return state_dict_.Close();
}

StepInfo StepSave::InfoOf(const SaveOptions& options) const {
  StepInfo info{.identity = identity_,
                .topology = {.dp = request_.world},
                .model = options.model,
                .state = state_dict_.ManifestState()};
  info.state.update(options.state);
  info.state["iteration"] = request_.step;
  for (const auto* differences : {&state_dict_.differences(), &copies_.differences()})
    for (const std::string& difference : *differences) info.history.push_back(difference);
  return info;
}

// Writes two shards: values, which every step has and whose sizes change; and small tensors, if any, which
// are laid out once.
Status StepSave::WriteContents(SavePlan& plan) {
  const auto write = [&](ContentShard& shard, int writer,
                         std::span<const StateDict::Content> contents) -> Status {
    CAIRN_ASSIGN_OR_RETURN(auto receipt,
                           shard.Write(fs_, committer_.partial(), ShardName(writer), identity_, contents));
    if (!receipt) return OkStatus();
    value_receipts_.push_back(*receipt);
    return job_->ReadBack(*receipt, identity_);
  };
  CAIRN_RETURN_IF_ERROR(write(plan.values, request_.world, state_dict_.values()));
  return write(plan.small_tensors, request_.world + 1, state_dict_.small_tensors());
}

Result<StepSeal> StepSave::Seal(SavePlan& plan, const SaveOptions& options,
                                const std::optional<BranchedStep>& newest, std::vector<SavePart>& parts) {
  runs_.RemoveFailed();  // every rank has arrived: none reads from it any more
  if (!alone()) {
    CAIRN_RETURN_IF_ERROR(MergeParts(plan, parts));
    CAIRN_RETURN_IF_ERROR(WriteContents(plan));
  }
  std::vector<ShardReceipt> receipts;
  for (SavePart& part : parts)
    if (part.receipt) receipts.push_back(*std::move(part.receipt));
  std::ranges::move(value_receipts_, std::back_inserter(receipts));
  StepInfo info = InfoOf(options);
  info.descent = NextDescent(request_.step, identity_.run, newest,
                             origins_.Of(identity_.run, request_.step, plan.names, options.when, newest));
  Result<StepSeal> seal = MakeSeal(info, state_dict_.Tensors(), receipts, &plan.views);
  if (!seal.ok()) return UncoveredTensor(seal.status());
  commit_ = BranchedStep{request_.step, identity_.run, info.descent};
  return seal;
}

std::vector<std::string> StepSave::RetireSteps() const {
  std::vector<std::string> left;
  if (!leads()) return left;
  const Result<HeldRuns::Run*> run = runs_.At(request_.run_dir);
  if (!run.ok()) return {std::string(run.status().message())};
  job_->Retire(identity_, [&](const Status& why) {
    if ((*run)->left.emplace(why.message()).second) left.emplace_back(why.message());
  });
  return left;
}

// The step under the final name is this save's if it lists this rank's shard, byte for byte. A failed save
// keeps its room; a step of this number may be an older one.
bool StepSave::IsCommitted() const {
  if (IsListed(fs_, committer_.partial()) || !IsListed(fs_, JoinPath(step_dir(), kManifestName)))
    return false;
  const Result<Manifest> manifest = ReadManifest(fs_, step_dir());
  if (!manifest.ok()) return false;
  return !part_.receipt || std::ranges::find(manifest->files, part_.receipt->file) != manifest->files.end();
}

TeamNews StepSave::News() const {
  const std::lock_guard lock(news_mutex_);
  return news_;
}

void StepSave::Hear(const nlohmann::json& news) {
  const std::string failed = news.value("failed", "");
  const std::lock_guard lock(news_mutex_);
  if (news.value("opened", false)) news_.opened = std::chrono::steady_clock::now();
  if (news.value("saved", false)) news_.published = true;
  if (!failed.empty()) news_.failed = Aborted("{}", failed);
}

void StepSave::Abandon(const Status& why) {
  if (!leads() && !entered_ && !rendezvous_.Begin().ok()) return;
  rendezvous_.Fail(Aborted("{}", why.message()));  // the others: SaveFailed
  if (!leads() || !fs_.Stat(committer_.partial()).ok()) return;
  rendezvous_.Dismiss();
  if (alone()) return committer_.Abandon();
  // A rank that waits for the commit, or arrives only now, must find the room and the reason in it.
  (void)committer_.RemoveFiles(
      [](std::string_view name) { return IsStepFileName(name) && !IsTeamFileName(name); });
  runs_.KeepFailed({fs_, request_.run_dir, request_.step, request_.nonce});
}

}  // namespace cairn
