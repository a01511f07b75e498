// Files are compared with the manifest before the step is opened, because opening names the first bad file
// only. A step that does not open fails every check that was asked for. Otherwise the kinds of check run in
// turn, and each makes a separate entry for the record. Checking every byte includes the structure: its
// pass may answer a failure of the structure, so it must be the stronger check.

#include "tools/check/step_check.h"

#include "ckpt/model/manifest.h"
#include "ckpt/run/step_hold.h"
#include "ckpt/step/find_step.h"
#include "tools/check/model_check.h"
#include "tools/check/value_check.h"

namespace cairn {
namespace {

constexpr size_t kFirstProblems = 3;  // that a record names
constexpr size_t kMaxRanges = 256;    // of a sample; a longer list is left out

// Every file that is missing or has another size; opening names only the first one. The manifest itself
// is left to StepReader::Open.
VerifyReport CheckFiles(FileSystem& fs, const std::string& directory) {
  const Result<Manifest> manifest = ReadManifest(fs, directory);
  VerifyReport report;
  if (!manifest.ok()) return report;
  for (const ManifestFile& file : manifest->files)
    (void)CheckSize(fs, manifest->DirectoryOf(directory, file.name), file, report);
  return report;
}

Check ToCheck(CheckKind kind, const VerifyReport& part) {
  Check check{.kind = kind, .bytes = part.bytes_checked, .problems = part.problems.size()};
  for (size_t i = 0; i < std::min(part.problems.size(), kFirstProblems); ++i)
    check.first_problems.push_back(ToString(part.problems[i]));
  return check;
}

void Append(StepReport& all, CheckKind kind, const VerifyReport& part) {
  all.bytes_checked += part.bytes_checked;
  all.Join(part);
  all.checks.push_back(ToCheck(kind, part));
}

VerifyReport Structure(const StepReader& step) {
  VerifyReport report = VerifyStructure(step);
  std::ranges::move(CheckModel(step.directory(), step.manifest(), step.catalog().tensors),
                    std::back_inserter(report.problems));
  return report;
}

// Passes only if the structure passes too, which makes it the stronger check.
void AppendEveryByte(StepReport& all, FileSystem& fs, const StepReader& step, const CheckOptions& options,
                     const std::function<void(uint64_t)>& progress) {
  VerifyReport report = Structure(step);
  if (options.structure) all.checks.push_back(ToCheck(CheckKind::kStructure, report));
  VerifyReport bytes = VerifyHash(fs, step, progress, options.jobs);
  report.bytes_checked = bytes.bytes_checked;
  report.Join(std::move(bytes));
  Append(all, CheckKind::kEveryByte, report);
}

void AppendSample(StepReport& all, const SampleReport& sample) {
  Append(all, CheckKind::kSample, sample);
  Check& check = all.checks.back();
  check.seed = sample.seed;
  check.chunks = sample.chunks;
  if (sample.ranges.size() <= kMaxRanges) check.ranges = sample.ranges;
}

// If a step does not open, every check that was asked for has failed.
StepReport Unopened(const CheckOptions& options, VerifyReport report) {
  StepReport all;
  if (options.structure) all.checks.push_back(ToCheck(CheckKind::kStructure, report));
  if (options.hash)
    all.checks.push_back(ToCheck(options.sample ? CheckKind::kSample : CheckKind::kEveryByte, report));
  if (options.values) all.checks.push_back(ToCheck(CheckKind::kValues, report));
  all.Join(std::move(report));
  return all;
}

}  // namespace

StepReport CheckStep(FileSystem& fs, const std::string& directory, const CheckOptions& options,
                     const std::function<void(uint64_t)>& progress) {
  VerifyReport files = CheckFiles(fs, directory);
  if (!files.good()) return Unopened(options, std::move(files));
  const auto step = StepReader::Open(fs, directory);
  if (!step.ok()) {
    files.Add(step.status(), directory);
    return Unopened(options, std::move(files));
  }
  RenewHold(fs, directory, (*step)->manifest());
  StepReport report;
  const ExpertCensus census = TakeCensus((*step)->catalog().tensors, (*step)->manifest().model);
  report.mixtures = census.mixtures;
  report.notes = census.notes;
  const auto from_here = [&progress, &report](uint64_t done) {
    if (progress) progress(report.bytes_checked + done);
  };
  const bool every_byte = options.hash && !options.sample;
  if (options.structure && !every_byte) Append(report, CheckKind::kStructure, Structure(**step));
  if (every_byte) AppendEveryByte(report, fs, **step, options, from_here);
  if (options.hash && options.sample) AppendSample(report, CheckSample(**step, *options.sample, from_here));
  if (!options.values) return report;
  ValueReport values = CheckValues(**step, census, options.max_memory, from_here);
  Append(report, CheckKind::kValues, values);
  report.experts = std::move(values.experts);
  std::ranges::move(values.notes, std::back_inserter(report.notes));
  return report;
}

}  // namespace cairn
