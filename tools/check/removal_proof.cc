// A proof checks again, at the moment of deletion, everything but the bytes of the step that stays: its files
// must be the same to the nanosecond as when they were read.

#include "tools/check/removal_proof.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <optional>
#include <ranges>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/step_tags.h"
#include "convert/formats/systems.h"
#include "tools/check/verified_successor.h"
#include "tools/cli/progress.h"
#include "tools/place/finished.h"
#include "tools/place/place.h"
#include "tools/seal/sealer.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

constexpr int64_t kQuietSeconds = 5;  // as of `cairn seal --settle`

Status Stays(const std::string& path, std::string_view why) {
  return InvalidArgument("{} is kept: {}", path, why);
}

// The files of a step that hold state, by the kinds of their names.
std::set<std::string> KindsOfState(const std::vector<StepFile>& files) {
  std::set<std::string> kinds;
  for (const StepFile& file : files)
    if (std::ranges::any_of(std::to_array<std::string_view>({".pt", ".pth", ".bin", ".ckpt", ".safetensors",
                                                             ".distcp", ".pkl", ".metadata"}),
                            [&](std::string_view suffix) { return file.name.ends_with(suffix); }))
      kinds.insert(KindOfName(file.name));
  return kinds;
}

// The roles of its tensors; none if no format reads it.
std::set<Role> RolesInFiles(FileSystem& fs, const std::string& directory) {
  const auto source = OpenForeign(fs, directory);
  return source.ok() ? (*source)->catalog().Roles() : std::set<Role>();
}

// A training that resumes from `later` misses nothing that `step` has.
Status CheckHoldsAsMuch(FileSystem& fs, const std::string& step, const std::string& later) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFile> files, ListStepFiles(fs, step));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFile> later_files, ListStepFiles(fs, later));
  const std::set<std::string> kinds = KindsOfState(files), later_kinds = KindsOfState(later_files);
  for (const std::string& kind : kinds)
    if (!later_kinds.contains(kind)) return NotFound("{} has no {}", later, kind);
  const std::set<Role> roles = RolesInFiles(fs, step), later_roles = RolesInFiles(fs, later);
  for (const Role role : roles)
    if (!later_roles.contains(role)) return NotFound("{} has no tensors of the kind {}", later, Name(role));
  return OkStatus();
}

// Errors: InvalidArgument if it is being written.
Status CheckFinished(FileSystem& fs, const FoundStep& step, bool proven) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFile> files, ListStepFiles(fs, step.path));
  const int64_t now = std::time(nullptr);
  const std::string why = proven || step.sealed
                              ? WhyNotProvenFinished(fs, step, files, now, kQuietSeconds)
                              : WhyUnfinished(fs, step, files, /*strict=*/true, now, kQuietSeconds);
  return why.empty() ? OkStatus() : Stays(step.path, "its writer may not be done: " + why);
}

Status CheckNotNamed(FileSystem& fs, const FoundStep& step) {
  const std::string by = NamedBy(fs, step);
  return by.empty() ? OkStatus() : Stays(step.path, by + " names it, so that a training may resume from it");
}

// The steps of its run that come after `path`, have another number and names of the same kind, the newest
// last. Errors: InvalidArgument if the step itself is not one of the run's.
Result<std::vector<FoundStep>> LaterSteps(FileSystem& fs, const std::string& path) {
  std::vector<FoundStep> steps = ListForeignSteps(fs, ParentDir(path));
  const auto itself = std::ranges::find(steps, path, &FoundStep::path);
  if (itself == steps.end()) return Stays(path, "no run is known that it is a step of");
  const auto number = itself->step;
  steps.erase(steps.begin(), std::next(itself));
  std::erase_if(steps, [&](const FoundStep& step) {
    return step.step == number || KindOfName(LastName(step.path)) != KindOfName(LastName(path));
  });
  return steps;
}

class LaterStep final : public DeletionProof {
 public:
  LaterStep(std::string going, std::string later, std::vector<StepFile> files)
      : going_(std::move(going)), later_(std::move(later)), files_(std::move(files)) {}
  Status Check(FileSystem& fs) const override {
    const FoundStep going = FoundStepAt(fs, going_);
    CAIRN_RETURN_IF_ERROR(CheckFinished(fs, going, /*proven=*/true));
    CAIRN_RETURN_IF_ERROR(CheckNotNamed(fs, going));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<FoundStep> later, LaterSteps(fs, going_));
    const auto stays = std::ranges::find(later, later_, &FoundStep::path);
    if (stays == later.end()) return Stays(going_, later_ + " is not a later step any more");
    CAIRN_RETURN_IF_ERROR(CheckFinished(fs, *stays, /*proven=*/true));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFile> now, ListStepFiles(fs, later_));
    return now == files_ ? OkStatus() : Corrupt("{}: it changed since it was read; {} stays", later_, going_);
  }
  std::string Text() const override { return fmt::format("{} is newer and whole", later_); }

 private:
  const std::string going_, later_;
  const std::vector<StepFile> files_;
};

class InsistedStep final : public DeletionProof {
 public:
  explicit InsistedStep(std::string path) : path_(std::move(path)) {}
  Status Check(FileSystem& fs) const override {
    return CheckFinished(fs, FoundStepAt(fs, path_), /*proven=*/false);
  }
  std::string Text() const override { return "the user insists"; }

 private:
  const std::string path_;
};

// Neither is a step of another system, is in one, nor holds one.
class InsistedTree final : public DeletionProof {
 public:
  explicit InsistedTree(std::string path) : path_(std::move(path)) {}
  Status Check(FileSystem& fs) const override {
    for (stdfs::path above = path_; above.has_relative_path(); above = above.parent_path())
      if (NamedStepOf(fs, above.string())) return Stays(path_, above.string() + " is a step of a run");
    return CheckBelow(fs, path_, 0);
  }
  std::string Text() const override { return "the user insists"; }

 private:
  Status CheckBelow(FileSystem& fs, const std::string& directory, int depth) const {
    constexpr int kMostDepth = 64;  // as of a cycle
    if (depth > kMostDepth) return Stays(path_, "its directories are nested too deeply");
    if (const auto steps = ListForeignSteps(fs, directory); !steps.empty())
      return Stays(path_, fmt::format("{} is a step of a run; archive {}", steps.back().path, directory));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
    for (const std::string& name : names) {
      const std::string below = JoinPath(directory, name);
      CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(below));
      if (info.is_directory()) CAIRN_RETURN_IF_ERROR(CheckBelow(fs, below, depth + 1));
    }
    return OkStatus();
  }

  const std::string path_;
};

}  // namespace

Result<std::shared_ptr<const DeletionProof>> RemovalProofs::For(const std::string& source) {
  using Proof = std::shared_ptr<const DeletionProof>;
  if (fs_.Stat(JoinPath(source, kManifestName)).ok()) {
    CAIRN_RETURN_IF_ERROR(CheckUntagged(fs_, PathInRealDirectory(source)));
    if (insists_.newest) return Proof();
    CAIRN_ASSIGN_OR_RETURN(HealthySuccessor stays, FindVerifiedSuccessor(fs_, source, show_progress_));
    return Proof(std::make_shared<HealthySuccessor>(std::move(stays)));
  }
  const std::string path = PathInRealDirectory(source);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.LinkStat(path));
  const bool link = !info.is_directory();  // no deletion follows it
  if (const FoundStep going = FoundStepAt(fs_, path); !link && going.step) return ForForeign(going);
  auto tree = std::make_shared<InsistedTree>(path);
  if (!link) CAIRN_RETURN_IF_ERROR(tree->Check(fs_));
  if (insists_.tree || link) return Proof(std::move(tree));
  return Stays(path, "nothing shows whether it holds the newest step of a run; --delete-tree removes it");
}

Result<std::shared_ptr<const DeletionProof>> RemovalProofs::ForForeign(const FoundStep& going) {
  using Proof = std::shared_ptr<const DeletionProof>;
  const std::string& path = going.path;
  CAIRN_RETURN_IF_ERROR(CheckFinished(fs_, going, /*proven=*/!insists_.newest));
  if (insists_.newest) return Proof(std::make_shared<InsistedStep>(path));
  CAIRN_RETURN_IF_ERROR(CheckNotNamed(fs_, going));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<FoundStep> later, LaterSteps(fs_, path));
  Status newer;
  for (const FoundStep& step : later | std::views::reverse) {
    if (!CheckFinished(fs_, step, /*proven=*/false).ok()) continue;
    Status good = CheckWhole(step);
    if (good.ok()) good = CheckHoldsAsMuch(fs_, path, step.path);
    if (good.ok()) return Proof(std::make_shared<LaterStep>(path, step.path, looked_at_.at(step.path).first));
    if (newer.ok()) newer = good;
  }
  if (newer.ok()) return Stays(path, "it is the newest finished step of its run");
  return Status(newer.kind(),
                fmt::format("{} is kept, because no newer step of its run is known to be whole: "
                            "{}",
                            path, newer.message()));
}

// Errors: Corrupt if it is damaged; NotFound if nothing proves that it is whole.
Status RemovalProofs::CheckWhole(const FoundStep& step) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<StepFile> files, ListStepFiles(fs_, step.path));
  auto& [seen, status] = looked_at_[step.path];
  if (files == seen) return status;
  status = ReadWhole(step, files);
  seen = std::move(files);
  return status;
}

Status RemovalProofs::ReadWhole(const FoundStep& step, const std::vector<StepFile>& files) const {
  if (const std::string why = WhyNotProvenFinished(fs_, step, files, std::time(nullptr), /*quiet_seconds=*/0);
      !why.empty())
    return NotFound("{}", why);
  uint64_t bytes = 0;
  for (const StepFile& file : files) bytes += file.bytes;
  Progress progress("verifying " + step.path, bytes, show_progress_);
  const auto update = [&](uint64_t done, uint64_t) { progress.Update(done); };
  Seal seal;
  std::vector<Problem> problems;
  if (step.sealed) {
    CAIRN_ASSIGN_OR_RETURN(seal, ReadSeal(fs_, step.path));
    const SealReport report = CheckSeal(fs_, step.path, seal, depth_, 2, update);
    CAIRN_RETURN_IF_ERROR(report.trouble);
    problems = report.problems;
  } else {
    SealOptions options{.quiet_seconds = 0, .strict = true, .dry_run = depth_ == SealDepth::kLook};
    options.check_only = true;
    options.progress = update;
    CAIRN_ASSIGN_OR_RETURN(const SealResult result, SealForeignStep(fs_, step, options));
    if (!result.unfinished.empty()) return NotFound("{}", result.unfinished);
    seal = result.seal;
    problems = result.problems;
  }
  if (!problems.empty()) return Corrupt("{}", ToString(problems.front()));
  if (!seal.problems.empty()) return Corrupt("{}", seal.problems.front());
  if (const auto unchecked = UncheckedIn(seal, {}); !unchecked.empty())
    return NotFound("{}: not all of it could be checked: {}", step.path, unchecked.front());
  return OkStatus();
}

}  // namespace cairn
