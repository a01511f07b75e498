#include "tools/serve/local_level.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "ckpt/base/byte_codec.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_identity.h"
#include "ckpt/step/partial_dir.h"
#include "tools/serve/packet.h"

namespace cairn {

Result<LocalLevel::Request> LocalLevel::Request::Parse(const nlohmann::json& said) {
  Request request{.run_dir = said.at("run").get<std::string>(),
                  .options = {.directory = said.at("local").get<std::string>(),
                              .redundancy = said.at("redundancy").get<std::string>()},
                  .nonce = said.at("nonce").get<std::string>()};
  CAIRN_ASSIGN_OR_RETURN(request.options.keep_last, IntegerAt<int64_t>(said, "keep_local"));
  if (request.run_dir.empty() || request.options.directory.empty() || request.nonce.size() != kNonceDigits ||
      !IsHex(request.nonce) || request.options.keep_last < 1)
    return Corrupt("local steps of \"{}\" in \"{}\"", request.run_dir, request.options.directory);
  return request;
}

Result<std::shared_ptr<LocalLevel>> LocalLevel::Open(FileSystem& fs, HeldRuns& runs,
                                                     std::shared_ptr<PeerFiles> peers, Request request) {
  request.options.wait_seconds = request.patience() / 2;
  std::shared_ptr<LocalLevel> level(new LocalLevel(fs, runs, std::move(peers), std::move(request)));
  const std::string& run_dir = level->request_.run_dir;
  // For the helpers of the job before. The other ranks wait for twice that.
  const Patience half = [&] {
    return std::chrono::seconds(static_cast<int64_t>(level->request_.patience() / 2));
  };
  const auto hold = [&]() -> Result<std::string> {
    CAIRN_RETURN_IF_ERROR(runs.Hold(fs, run_dir, half));
    CAIRN_ASSIGN_OR_RETURN(RunIdentity run, IdentifyRun(fs, run_dir));
    return std::move(run.run);
  };
  CAIRN_ASSIGN_OR_RETURN(level->run_, FromRoot(level->ranks_, "run directory", hold));
  CAIRN_ASSIGN_OR_RETURN(level->place_, OpenLocalPlace(fs, level->request_.options, run_dir, level->run_,
                                                       level->request_.nonce, level->ranks_, ReportLine));
  CAIRN_RETURN_IF_ERROR(level->NoteNewest());
  return level;
}

// A save descends from the newest step or gives it up, also if that is on the nodes and the training has
// loaded another one by its path.
Status LocalLevel::NoteNewest() {
  LocalSteps local(fs_, place_, request_.nonce, ranks_, *peers_, ReportLine);
  CAIRN_RETURN_IF_ERROR(local.Survey());
  const auto note = [&]() -> Status {
    if (ranks_.rank() != 0) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const ResumeSteps found, Steps(local));
    CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(request_.run_dir));
    if (found.newest) run->Committed(*found.newest);
    run->unseen_branch = found.unseen_branch;
    return OkStatus();
  };
  return Agree(ranks_, note(), "local steps");
}

// On rank 0.
Result<ResumeSteps> LocalLevel::Steps(const LocalSteps& local) const {
  CAIRN_ASSIGN_OR_RETURN(const auto note, ReadLocalNote(fs_, request_.run_dir));
  return StepsToResume(fs_, request_.run_dir, run_, &local, note);
}

// A newer local step could not be loaded. It may be whole again, on other nodes, after the next save.
Status LocalLevel::GiveUpAfter(const BranchedStep& commit) {
  CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(request_.run_dir));
  CAIRN_ASSIGN_OR_RETURN(run->unseen_branch, GiveUpLocalSteps(fs_, request_.run_dir, commit));
  return OkStatus();
}

uint64_t LocalLevel::ParityOf(uint64_t shard_bytes) const {
  if (place_.group.empty()) return 0;
  std::vector<ParityGroup::Member> members(place_.group.size());
  for (size_t i = 0; i < members.size(); ++i) members[i] = {ShardName(place_.group[i]), shard_bytes};
  const auto group = ParityGroup::Make({run_, 0}, std::move(members), place_.parity);
  return group.ok() ? group->parity_file_bytes() : 0;
}

// The save that runs still needs room for the parity of all ranks here.
Result<SharedMemory> LocalLevel::NewMemory(uint64_t bytes) {
  const uint64_t need = bytes + ParityOf(bytes) * place_.sharers.size();
  if (IsInMemory(place_.run_dir) && CheckFreeSpace(fs_, place_.run_dir, need).ok()) {
    Result<SharedMemory> file = SharedMemory::MakeFile(fs_, JoinPath(place_.run_dir, NewMemoryName()), bytes);
    if (file.ok()) return file;
  }
  return SharedMemory::Make(bytes);
}

std::string LocalLevel::SpareFile(uint64_t bytes) {
  if (!IsInMemory(place_.run_dir)) return "";
  for (const SharedMemory& file : spare_)
    if (!file.IsHeld() && file.bytes().size() == bytes) return file.path();
  std::erase_if(spare_, [](const SharedMemory& file) { return !file.IsHeld(); });
  auto file = SharedMemory::MakeFile(fs_, JoinPath(place_.run_dir, NewMemoryName()), bytes);
  return file.ok() ? spare_.emplace_back(*std::move(file)).path() : "";
}

// Other ranks here may have begun to write.
Status LocalLevel::CheckRoom(const std::string& partial, uint64_t shard_bytes, bool exists) const {
  const bool spare = exists && std::ranges::any_of(spare_, std::not_fn(&SharedMemory::IsHeld));
  uint64_t need = ((exists ? 0 : shard_bytes) + (spare ? 0 : ParityOf(shard_bytes))) * place_.sharers.size();
  const auto names = fs_.List(partial);
  for (const std::string& name : names.ok() && !exists ? *names : std::vector<std::string>())
    if (const auto info = fs_.Stat(JoinPath(partial, name)); info.ok()) need -= std::min(need, info->bytes);
  return CheckFreeSpace(fs_, place_.run_dir, need)
      .WithContext("local steps (fewer of them: keep_local; or keep them on a larger file system)");
}

Status LocalLevel::Retire(const std::string& nonce, const Complain& left) {
  const auto in_use = [this](int64_t step) {
    const std::lock_guard lock(mutex_);
    return in_use_.contains(step);
  };
  return RetireLocalSteps(fs_, place_, nonce, in_use, left);
}

void LocalLevel::Use(int64_t step) {
  const std::lock_guard lock(mutex_);
  in_use_.insert(step);
}
void LocalLevel::Release(int64_t step) {
  const std::lock_guard lock(mutex_);
  in_use_.erase(in_use_.find(step));
}

Result<std::optional<ResumeStep>> LocalLevel::Resume(const LoadStep& load, bool verify) {
  LocalSteps local(fs_, place_, request_.nonce, ranks_, *peers_, ReportLine);
  CAIRN_RETURN_IF_ERROR(local.Survey());
  ResumeSteps found;  // on rank 0
  const auto list = [&]() -> Result<std::string> {
    CAIRN_ASSIGN_OR_RETURN(found, Steps(local));
    if (const std::string why = found.GivenUp(); !why.empty()) ReportLine(why);
    ByteWriter out;
    for (const ResumeStep& step : found.steps) step.Encode(out);
    return std::move(out).Take();
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string told, FromRoot(ranks_, "steps to resume from", list));
  std::vector<ResumeStep> steps;
  for (ByteReader in(told); in.left() > 0 && in.ok();) steps.push_back(ResumeStep::Decode(in));
  const auto say = [&](const std::string& line) {
    if (ranks_.rank() == 0) ReportLine(line);
  };
  bool lost = false;  // a local step
  for (size_t i = 0; i < steps.size(); ++i) {
    const ResumeStep& step = steps[i];
    const Status loaded = step.local ? local.Load(
                                           step.step,
                                           [&](const PeerFileSystem& files, const std::string& directory) {
                                             return load(directory, files.elsewhere());
                                           },
                                           verify)
                                     : load(step.directory, {});
    const Status agreed = Agree(ranks_, loaded, "outcome of the load");
    if (agreed.ok()) {
      const bool notes = lost && ranks_.rank() == 0;
      CAIRN_RETURN_IF_ERROR(
          Agree(ranks_, notes ? GiveUpAfter(found.steps[i].commit) : OkStatus(), "local steps"));
      CAIRN_RETURN_IF_ERROR(local.SetAsideNewerThan(step.step));
      say("resumed from " + step.Name());
      return std::optional(step);
    }
    if (!IsDamage(agreed.kind())) return agreed;
    say("skipping a damaged step: " + agreed.message());
    lost |= step.local;
  }
  if (!steps.empty())
    return Corrupt("{}: none of its {} steps can be loaded; check them with `cairn verify`", request_.run_dir,
                   steps.size());
  CAIRN_RETURN_IF_ERROR(local.SetAsideNewerThan(-1));
  return std::optional<ResumeStep>();
}

}  // namespace cairn
