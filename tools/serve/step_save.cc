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
#include "ckpt/base/this_process.h"
#include "ckpt/io/fresh_names.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/job/peer_file_system.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/local_branch.h"
#include "ckpt/run/run_identity.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/packed_shard_writer.h"
#include "ckpt/step/shard_copy.h"
#include "ckpt/step/shard_image.h"

namespace cairn {
namespace {

constexpr double kMaxPatience = 1e9;  // seconds; clocks hold twice as many
constexpr uint64_t kMaxTeamFileBytes = uint64_t{1} << 32;

std::string ContentName(std::string_view kind, std::string_view bytes) {
  return fmt::format("team-{}-{}", kind, ToHex(DigestOf(bytes)));
}

Result<std::string> Matching(const std::string& name, std::string content) {
  if (!name.ends_with(ToHex(DigestOf(content)))) return Corrupt("{} does not match its name", name);
  return content;
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

uint64_t EndOf(const SavePlan& plan, const SaveValues& values) {
  return plan.memory.bytes().size() + (values.late ? 1 : 0);
}

Result<SaveRequest> SaveRequest::Parse(const nlohmann::json& said) {
  SaveRequest request{.run_dir = said.at("run").get<std::string>(),
                      .nonce = said.at("nonce").get<std::string>()};
  CAIRN_ASSIGN_OR_RETURN(request.step, IntegerAt<int64_t>(said, "step"));
  CAIRN_ASSIGN_OR_RETURN(request.rank, IntegerAt<int>(said, "rank"));
  CAIRN_ASSIGN_OR_RETURN(request.world, IntegerAt<int>(said, "world"));
  const double patience = said.value("deadline", 600.0);
  if (!(patience > 0 && patience <= kMaxPatience)) return Corrupt("a deadline of {} s", patience);
  request.patience = std::chrono::seconds(static_cast<int64_t>(patience));
  if (const auto start = said.find("start"); start != said.end())
    request.start = {.time = start->value("time", 0.0),
                     .seconds = start->value("seconds", 0.0),
                     .local_step = start->value("local_step", int64_t{-1}),
                     .again = start->value("again", false)};
  if (request.run_dir.empty() || request.step < 0 ||
      !ParseMarkedDirName(PartialDirName(request.step, request.nonce)) || request.rank < 0 ||
      request.rank >= request.world || request.world > kMaxWorld)
    return Corrupt("a save of step {} by rank {} of {} in \"{}\"", request.step, request.rank, request.world,
                   request.run_dir);
  return request;
}

StepSave::StepSave(FileSystem& fs, HeldRuns& runs, Origins& origins, EqualCopies& equal, SaveRequest request,
                   const std::atomic<bool>& trainer_ended, std::shared_ptr<LocalLevel> level)
    : fs_(fs),
      runs_(runs),
      origins_(origins),
      equal_(equal),
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
                   .news = [this] { return News(); }}),
      level_(std::move(level)) {
  if (!level_) now_.directory = committer_.partial();
}

Status StepSave::Begin() {
  if (!leads()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(runs_.Hold(fs_, request_.run_dir, patience_));
  return level_ ? OkStatus() : BeginInRun();
}

Status StepSave::BeginInRun() {
  now_ = {.directory = committer_.partial()};
  if (!leads()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(committer_.MakePartial());
  return rendezvous_.Begin();
}

// ---- On the nodes ----

Status StepSave::SaveLocally(SavePlan& plan, const SaveValues& values, const SaveOptions& options,
                             const std::function<Status(uint64_t end)>& wait_for) {
  PeerRanks ranks(level_->peers(), request_.nonce, level_->patience());
  identity_ = {level_->run(), request_.step};
  LocalSave save(fs_, level_->place(), ranks, level_->peers(), identity_, request_.nonce);
  now_ = {.directory = save.partial(), .local = true};
  const auto write = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(
        level_->CheckRoom(save.partial(), plan.memory.bytes().size(), IsInPlace(plan, options)));
    CAIRN_RETURN_IF_ERROR(save.MakePartial());
    CAIRN_RETURN_IF_ERROR(WriteOwnShard(plan, options, wait_for));
    CAIRN_RETURN_IF_ERROR(wait_for(EndOf(plan, values)));
    return LeaveValues(plan, values);
  };
  const Status written = write();
  LocalSave::Offers offers{.contents = {}, .sealer_reads = true, .files = {}, .spare = [&](uint64_t bytes) {
                             return level_->SpareFile(bytes);
                           }};
  for (const auto& [name, bytes] : now_.contents)
    offers.contents[name] = {std::as_bytes(std::span(bytes)), ""};
  if (plan.shard) offers.files[plan.shard->name()] = {plan.memory.bytes(), ""};
  for (int further = 0; leads() && further < 2; ++further) {
    const std::string name = ShardName(request_.world + further);
    offers.files[name] = {{}, JoinPath(save.partial(), name)};
  }
  const auto seal = [&](std::vector<SavePart>& parts) -> Result<StepSeal> {
    CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(request_.run_dir));
    CAIRN_ASSIGN_OR_RETURN(sealed_, Seal(plan, options, run->newest(), parts));
    return sealed_;
  };
  const Result<SavePart> part = written.ok() ? Result<SavePart>(now_.part) : written;
  CAIRN_RETURN_IF_ERROR(save.Commit(part, std::move(offers), seal));
  local_step_ = save.step_dir();
  if (!leads()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(request_.run_dir));
  run->Committed(commit_);
  origins_.Saved(commit_, plan.names, options.when);
  return OkStatus();
}

// The shards, and so the seal, are those of the local step.
Status StepSave::CopyToRun(const SavePlan& plan, const SaveOptions& options) {
  const Attempt local = std::exchange(now_, {});
  CAIRN_RETURN_IF_ERROR(BeginInRun());
  now_.part = local.part;
  CAIRN_RETURN_IF_ERROR(EnterRoom(plan, options));
  const auto copy = [&](const ShardReceipt& receipt) {
    return CopyShard(fs_, local_step_, committer_.partial(), receipt, identity_);
  };
  if (now_.part.receipt) CAIRN_RETURN_IF_ERROR(copy(*now_.part.receipt));
  const auto seal = [&](const std::vector<SavePart>&) -> Result<StepSeal> {
    for (const ShardReceipt& receipt : local.value_receipts) {
      CAIRN_RETURN_IF_ERROR(copy(receipt));
      CAIRN_RETURN_IF_ERROR(job_->ReadBack(receipt, identity_));
    }
    return sealed_;
  };
  CAIRN_RETURN_IF_ERROR(job_->Commit(now_.part, identity_, seal));
  local_step_.clear();
  return OkStatus();
}

// ---- In the run ----

Status StepSave::EnterRoom(const SavePlan& plan, const SaveOptions& options) {
  if (!leads()) CAIRN_RETURN_IF_ERROR(rendezvous_.Begin());
  entered_ = true;
  CAIRN_RETURN_IF_ERROR(rendezvous_.Check());
  JobSave::Options job{.scratch = IsTeamFileName, .retention = options.retention};
  if (leads()) {
    CAIRN_RETURN_IF_ERROR(CheckSpace(plan, options));
    CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(request_.run_dir));
    job.lock = &run->lock;
  }
  job_.emplace(fs_, static_cast<SaveMessages&>(*this), request_.run_dir, request_.step, request_.nonce,
               std::move(job));
  (void)fs_.List(request_.run_dir);  // the run's owner may not have existed when this host last looked
  CAIRN_ASSIGN_OR_RETURN(const RunIdentity run, IdentifyRun(fs_, request_.run_dir));
  identity_ = {run.run, request_.step};
  return OkStatus();
}

// The values are small: handled after the copy, for which the training waits, they are still on disk before
// the shard is.
Status StepSave::WriteShard(SavePlan& plan, const SaveValues& values, const SaveOptions& options,
                            const std::function<Status(uint64_t end)>& wait_for) {
  CAIRN_RETURN_IF_ERROR(EnterRoom(plan, options));
  std::future<Status> handling = std::async([&] {
    CAIRN_RETURN_IF_ERROR(wait_for(EndOf(plan, values)));
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
  CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(request_.run_dir));
  if (run->limits.empty()) return OkStatus();
  Room step{.files = static_cast<uint64_t>(request_.world) + 4};
  for (const StateTensor& tensor : plan.tensors) step.bytes += tensor.entry.bytes();
  const Status room = CheckRoomForSteps(fs_, request_.run_dir, step, run->limits);
  if (!room.ok() && options.require_space) {
    CAIRN_ASSIGN_OR_RETURN(run->limits, LimitsAt(fs_, request_.run_dir));
    return room;
  }
  if (room.kind() == StatusKind::kNoSpace) ReportLine("warning: " + room.message());
  run->limits.clear();
  return OkStatus();
}

bool StepSave::IsInPlace(const SavePlan& plan, const SaveOptions& options) const {
  return level_ && !options.compress && plan.shard && level_->Has(plan.memory);
}

Status StepSave::WriteOwnShard(SavePlan& plan, const SaveOptions& options,
                               const std::function<Status(uint64_t end)>& wait_for) {
  if (!plan.shard) return OkStatus();
  plan.shard->Bind(identity_);
  const std::span<std::byte> image = plan.memory.bytes();
  if (options.compress) CAIRN_RETURN_IF_ERROR(wait_for(image.size()));
  CAIRN_ASSIGN_OR_RETURN(
      now_.part.receipt,
      options.compress
          ? WritePackedImage(fs_, now_.directory, *plan.shard, image)
          : WriteShardImage(fs_, now_.directory, *plan.shard, image,
                            {.mapped = now_.local && IsInPlace(plan, options) ? plan.memory.path() : "",
                             .wait_for = wait_for}));
  return OkStatus();
}

Status StepSave::HandleValues(SavePlan& plan, const SaveValues& values) {
  if (!alone()) return LeaveValues(plan, values);
  CAIRN_RETURN_IF_ERROR(now_.state_dict.Add(0, plan.tensors));
  for (const Packet& group : values.groups) CAIRN_RETURN_IF_ERROR(now_.state_dict.Add(0, group));
  CAIRN_RETURN_IF_ERROR(now_.state_dict.Close());
  return WriteContents(plan);
}

// Ranks that have the same bytes leave them once; a later rank finds the file, or writes the same bytes
// again.
Result<std::string> StepSave::LeaveContent(std::string_view kind, std::string_view bytes) {
  const std::string name = ContentName(kind, bytes);
  if (now_.local) {
    now_.contents.emplace(name, bytes);
    return name;
  }
  const std::string path = JoinPath(committer_.partial(), name);
  if (fs_.Stat(path).ok()) return name;
  CAIRN_RETURN_IF_ERROR(WriteAndRename(fs_, fmt::format("{}.{:05}", path, request_.rank), path, bytes));
  return name;
}

Status StepSave::LeaveValues(const SavePlan& plan, const SaveValues& values) {
  nlohmann::json left{
      {"groups", nlohmann::json::array()}, {"copies", nlohmann::json::object()}, {"host", HostName()}};
  CAIRN_ASSIGN_OR_RETURN(left["table"], LeaveContent("table", plan.table));
  for (const Packet& group : values.groups) {
    CAIRN_ASSIGN_OR_RETURN(std::string name, LeaveContent("group", EncodePacket(group)));
    left["groups"].push_back(std::move(name));
  }
  for (const auto& [group, sums] : values.copies.items()) {
    CAIRN_ASSIGN_OR_RETURN(left["copies"][group], LeaveContent("copies", sums.dump()));
  }
  for (const auto& [name, bytes] : now_.contents) left["bytes"][name] = bytes.size();
  now_.part.note = left.dump();
  return OkStatus();
}

Status StepSave::Finish(SavePlan& plan, const SaveOptions& options) {
  std::shared_ptr<HeldRuns::Run> run;  // on rank 0
  if (leads()) {
    CAIRN_ASSIGN_OR_RETURN(run, runs_.At(request_.run_dir));
  }
  const auto seal = [&](std::vector<SavePart>& parts) { return Seal(plan, options, run->newest(), parts); };
  CAIRN_RETURN_IF_ERROR(job_->Commit(now_.part, identity_, seal));
  if (!run) return OkStatus();
  run->Committed(commit_);
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

// One that `rank` has left, as its note says.
Result<std::string> StepSave::ReadContent(int rank, const nlohmann::json& left,
                                          const std::string& name) const {
  if (!IsPlainFileName(name) || !IsTeamFileName(name)) return Corrupt("{}: not a file of a team", name);
  if (now_.local) {
    CAIRN_ASSIGN_OR_RETURN(const auto bytes, IntegerAt<uint64_t>(left.at("bytes"), name.c_str()));
    if (bytes > kMaxTeamFileBytes) return Corrupt("{}: {} bytes", name, bytes);
    std::string content(bytes, '\0');
    CAIRN_RETURN_IF_ERROR(
        ReadPeerFile(level_->peers(), rank, name, 0, std::as_writable_bytes(std::span(content))));
    return Matching(name, std::move(content));
  }
  CAIRN_ASSIGN_OR_RETURN(std::string content,
                         ReadSmallFile(fs_, JoinPath(committer_.partial(), name), kMaxTeamFileBytes));
  return Matching(name, std::move(content));
}

// Contents that ranks share are read once, for the first rank that names them.
Status StepSave::MergeParts(const SavePlan& plan, const SaveOptions& options,
                            const std::vector<SavePart>& parts) {
  std::set<std::string> seen;
  std::vector<nlohmann::json> all_left;
  const std::string own_table = ContentName("table", plan.table);
  for (int rank = 0; rank < request_.world; ++rank) {
    const nlohmann::json& left = all_left.emplace_back(nlohmann::json::parse(parts[rank].note));
    const auto read = [&](const std::string& name) { return ReadContent(rank, left, name); };
    const auto table = left.at("table").get<std::string>();
    if (table == own_table) {
      if (seen.insert(table).second) CAIRN_RETURN_IF_ERROR(now_.state_dict.Add(rank, plan.tensors));
    } else if (seen.insert(table).second) {
      CAIRN_ASSIGN_OR_RETURN(const std::string rows, read(table));
      CAIRN_ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, DecodeTable(rows));
      CAIRN_RETURN_IF_ERROR(now_.state_dict.Add(rank, tensors));
    }
    for (const auto& name : left.at("groups").get<std::vector<std::string>>()) {
      if (!seen.insert(name).second) continue;
      CAIRN_ASSIGN_OR_RETURN(const std::string packed, read(name));
      CAIRN_ASSIGN_OR_RETURN(const Packet group, DecodePacket(packed));
      CAIRN_RETURN_IF_ERROR(now_.state_dict.Add(rank, group));
    }
  }
  CAIRN_RETURN_IF_ERROR(CompareCopies(options, all_left));
  return now_.state_dict.Close();
}

// left: what each rank has left.
Status StepSave::CompareCopies(const SaveOptions& options, const std::vector<nlohmann::json>& left) {
  Copies copies;
  for (size_t rank = 0; rank < left.size(); ++rank)
    copies.Add(static_cast<int>(rank), left[rank].at("host").get<std::string>(), left[rank].at("copies"));
  CAIRN_ASSIGN_OR_RETURN(Copies::Verdict verdict,
                         copies.Compare(equal_, [&](int rank, const std::string& name) {
                           return ReadContent(rank, left[static_cast<size_t>(rank)], name);
                         }));
  if (!verdict.alarm.empty()) CAIRN_RETURN_IF_ERROR(RecordAlarm(verdict.alarm));
  if (!verdict.alarm.empty() && !options.copies_may_differ) return Aborted("{}", verdict.alarm);
  if (!verdict.lost.empty()) return InvalidArgument("{}", verdict.lost);
  for (const std::string& note : verdict.notes)
    if (equal_.IsNew(note)) ReportLine(fmt::format("step {}: {}", request_.step, note));
  now_.differences = std::move(verdict.notes);
  if (!verdict.alarm.empty()) now_.differences.push_back(std::move(verdict.alarm));
  return OkStatus();
}

// Once, even if a save on the nodes is followed by one in the run.
Status StepSave::RecordAlarm(const std::string& why) {
  if (!std::exchange(alarm_, why).empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(request_.run_dir));
  run->record.Alarm(request_.step, why);
  return OkStatus();
}

StepInfo StepSave::InfoOf(const SaveOptions& options) const {
  StepInfo info{.identity = identity_,
                .topology = {.dp = request_.world},
                .model = options.model,
                .state = now_.state_dict.ManifestState()};
  info.state.update(options.state);
  info.state["iteration"] = request_.step;
  for (const auto* differences : {&now_.state_dict.differences(), &now_.differences})
    for (const std::string& difference : *differences) info.history.push_back(difference);
  return info;
}

// Writes two shards: values, which every step has and whose sizes change; and small tensors, if any, which
// are laid out once.
Status StepSave::WriteContents(SavePlan& plan) {
  const auto write = [&](ContentShard& shard, int writer,
                         std::span<const StateDict::Content> contents) -> Status {
    CAIRN_ASSIGN_OR_RETURN(auto receipt,
                           shard.Write(fs_, now_.directory, ShardName(writer), identity_, contents));
    if (!receipt) return OkStatus();
    now_.value_receipts.push_back(*receipt);
    return now_.local ? OkStatus() : job_->ReadBack(*receipt, identity_);
  };
  CAIRN_RETURN_IF_ERROR(write(plan.values, request_.world, now_.state_dict.values()));
  return write(plan.small_tensors, request_.world + 1, now_.state_dict.small_tensors());
}

Result<StepSeal> StepSave::Seal(SavePlan& plan, const SaveOptions& options,
                                const std::optional<BranchedStep>& newest, std::vector<SavePart>& parts) {
  const auto lock = level_ ? std::unique_lock(level_->sealing) : std::unique_lock<std::mutex>();
  if (!now_.local) runs_.RemoveFailed();  // every rank has arrived: none reads from it any more
  if (!alone() || now_.local) {
    CAIRN_RETURN_IF_ERROR(MergeParts(plan, options, parts));
    CAIRN_RETURN_IF_ERROR(WriteContents(plan));
  }
  std::vector<ShardReceipt> receipts;
  for (SavePart& part : parts)
    if (part.receipt) receipts.push_back(*std::move(part.receipt));
  std::ranges::copy(now_.value_receipts, std::back_inserter(receipts));
  StepInfo info = InfoOf(options);
  const auto origin = origins_.Of(identity_.run, request_.step, plan.names, options.when, newest);
  CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(request_.run_dir));
  info.descent = AfterLocalBranch(NextDescent(request_.step, identity_.run, newest, origin), request_.step,
                                  identity_.run, newest, run->unseen_branch);
  if (now_.local)
    CAIRN_RETURN_IF_ERROR(
        NoteLocalBranch(fs_, request_.run_dir, identity_.run, info.descent, run->noted_branch));
  RecordStart(parts, origin);
  Result<StepSeal> seal = MakeSeal(info, now_.state_dict.Tensors(), receipts, &plan.views);
  if (!seal.ok()) return UncoveredTensor(seal.status());
  commit_ = BranchedStep{request_.step, identity_.run, info.descent};
  return seal;
}

void StepSave::RecordStart(const std::vector<SavePart>& parts, const std::optional<BranchedStep>& origin) {
  const auto run = runs_.At(request_.run_dir);
  if (!request_.start || !run.ok()) return;
  const TrainingStartTold& told = *request_.start;
  if (told.again) return (*run)->record.Continue();
  std::set<std::string> hosts;
  for (const SavePart& part : parts)
    hosts.insert(part.note.empty() ? HostName() : nlohmann::json::parse(part.note).value("host", ""));
  RunEvent start{.time = told.time,
                 .hosts = {hosts.begin(), hosts.end()},
                 .ranks = request_.world,
                 .local = level_ != nullptr,
                 .seconds = told.seconds};
  if (origin) {
    const bool own = origin->run == identity_.run;
    start.step = origin->step;
    start.tier = !own ? "load" : origin->step == told.local_step ? "local" : "run";
    const auto manifest =
        fs_.Stat(JoinPath(JoinPath(request_.run_dir, StepDirName(origin->step)), kManifestName));
    if (start.tier == "run" && manifest.ok())
      start.step_time = static_cast<double>(manifest->modified_unix_nanoseconds) / 1e9;
  }
  (*run)->record.Start(std::move(start));
}

std::vector<std::string> StepSave::RetireSteps() const {
  std::vector<std::string> left;
  if (!leads()) return left;
  const auto run = runs_.At(request_.run_dir);
  if (!run.ok()) return {std::string(run.status().message())};
  job_->Retire(identity_, [&](const Status& why) {
    if ((*run)->left.emplace(why.message()).second) left.emplace_back(why.message());
  });
  return left;
}

// The step under the final name is this save's if it lists this rank's shard, byte for byte. A failed save
// keeps its room; a step of this number may be an older one.
bool StepSave::IsCommitted() const {
  if (IsListed(fs_, committer_.partial()) || !IsListed(fs_, JoinPath(committer_.step_dir(), kManifestName)))
    return false;
  const Result<Manifest> manifest = ReadManifest(fs_, committer_.step_dir());
  if (!manifest.ok()) return false;
  return !now_.part.receipt ||
         std::ranges::find(manifest->files, now_.part.receipt->file) != manifest->files.end();
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

// Before SaveLocally: the other ranks wait for this one's part.
void StepSave::AbandonLocally(const Status& why) {
  PeerRanks ranks(level_->peers(), request_.nonce, level_->patience());
  LocalSave save(fs_, level_->place(), ranks, level_->peers(), {level_->run(), request_.step},
                 request_.nonce);
  (void)save.Commit(why, {.contents = {}, .sealer_reads = true, .files = {}, .spare = {}},
                    [&](const auto&) -> Result<StepSeal> { return why; });
}

void StepSave::Abandon(const Status& why) {
  if (level_ && now_.directory.empty()) return AbandonLocally(why);
  if (now_.local) return;  // all ranks know
  // Rank 0, which waits until all have left, may have failed before it opened the room.
  if (!leads() && !entered_ && !rendezvous_.Begin().ok() && News().failed.ok()) return;
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
