// The search runs twice: first among steps on record, which reads none, and only if that finds nothing with a
// look that reads. So one call of an archive reads one step of a run, whatever it removes. The returned proof
// checks the record again, and never reads a step under the lock of a deletion.

#include "tools/check/verified_successor.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/manifest.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/step_reader.h"
#include "tools/check/step_check.h"
#include "tools/check/verify_record.h"
#include "tools/cli/progress.h"

namespace cairn {
namespace {

Result<std::set<Role>> RolesOf(FileSystem& fs, const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs, directory));
  return step->catalog().Roles();
}

// Checks the steps that may stay.
class Looker {
 public:
  Looker(FileSystem& fs, std::set<Role> roles, bool show_progress)
      : fs_(fs), roles_(std::move(roles)), show_progress_(show_progress) {}

  // Errors: Corrupt if it is damaged; NotFound if not every byte of it was verified.
  Status OnRecord(const std::string& directory) const {
    CAIRN_RETURN_IF_ERROR(HoldsAsMuch(directory));
    CAIRN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fs_, directory));
    const std::vector<Check> checks = ReadVerifyRecord(fs_, directory, manifest);
    const std::vector<CheckedFile> files = StatFiles(fs_, directory, manifest);
    const Standing standing = StandingOf(checks, files);
    if (standing.trust == Trust::kVerified) return OkStatus();
    const bool looked_so = std::ranges::any_of(
        checks, [&](const Check& check) { return check.problems > 0 && check.files == files; });
    if (standing.trust == Trust::kDamaged && looked_so)
      return Corrupt("{} is damaged: {}", directory, standing.why);
    return NotFound("{}: not every byte of its present files has been verified", directory);
  }

  Status ByReading(const std::string& directory) const {
    // If the file system has no locks, each process reads.
    Result<FileLock> lock = fs_.OpenLock(directory, FileLock::Missing::kError);
    if (lock.ok()) (void)lock->Lock(FileLock::How::kExclusive);
    if (const Status known = OnRecord(directory); known.kind() != StatusKind::kNotFound) return known;
    CAIRN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fs_, directory));
    const std::vector<CheckedFile> files = StatFiles(fs_, directory, manifest);
    Progress progress("verifying " + directory, manifest.bytes(), show_progress_);
    const StepReport report = CheckStep(fs_, directory, {}, [&](uint64_t done) { progress.Update(done); });
    if (!report.trouble.ok()) return report.trouble;  // not read to the end: neither good nor damaged
    CAIRN_RETURN_IF_ERROR(RecordChecks(fs_, directory, manifest, files, report.checks).status());
    return OnRecord(directory);
  }

 private:
  Status HoldsAsMuch(const std::string& directory) const {
    CAIRN_ASSIGN_OR_RETURN(const std::set<Role> roles, RolesOf(fs_, directory));
    for (const Role role : roles_)
      if (!roles.contains(role)) return Corrupt("{} has no tensors of the kind {}", directory, Name(role));
    return OkStatus();
  }

  FileSystem& fs_;
  const std::set<Role> roles_;
  const bool show_progress_;
};

}  // namespace

Result<HealthySuccessor> FindVerifiedSuccessor(FileSystem& fs, const std::string& step_directory,
                                               bool show_progress) {
  CAIRN_ASSIGN_OR_RETURN(std::set<Role> roles, RolesOf(fs, step_directory));
  const Looker looker(fs, std::move(roles), show_progress);
  const std::filesystem::path step = CanonicalPath(step_directory);
  const std::string run_dir = step.parent_path().string(), name = step.filename().string();
  const StepLook on_record = [looker](const std::string& other) { return looker.OnRecord(other); };
  Result<HealthySuccessor> known = HealthySuccessor::For(fs, run_dir, name, on_record);
  if (known.ok() || known.status().kind() == StatusKind::kInvalidArgument) return known;
  const StepLook by_reading = [&](const std::string& other) { return looker.ByReading(other); };
  CAIRN_RETURN_IF_ERROR(HealthySuccessor::For(fs, run_dir, name, by_reading).status());
  return HealthySuccessor::For(fs, run_dir, name, on_record);
}

}  // namespace cairn
