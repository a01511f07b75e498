#include "tools/step_check.h"

#include "ckpt/layout.h"
#include "tools/value_check.h"

namespace cairn {
namespace {

// Every file that is missing or has another size, where opening names the first one only. The manifest itself
// is left to StepReader::Open.
std::vector<Problem> CheckFiles(FileSystem& fs, const std::string& directory) {
  const auto text = ReadSmallFile(fs, JoinPath(directory, kManifestName), kMaxManifestBytes);
  if (!text.ok()) return {};
  const Result<Manifest> manifest = DecodeManifest(*text);
  if (!manifest.ok()) return {};
  std::vector<Problem> problems;
  for (const ManifestFile& file : manifest->files) {
    const std::string path = JoinPath(manifest->DirectoryOf(directory, file.name), file.name);
    const Result<FileInfo> info = fs.Stat(path);
    if (!info.ok())
      problems.push_back({path, 0, "", info.status().message()});
    else if (info->bytes != file.bytes)
      problems.push_back({path, std::min(info->bytes, file.bytes), "",
                          fmt::format("has {} bytes, its manifest says {}; it was truncated or replaced",
                                      info->bytes, file.bytes)});
  }
  return problems;
}

void Append(VerifyReport& all, VerifyReport part) {
  all.bytes_checked += part.bytes_checked;
  for (Problem& problem : part.problems) all.problems.push_back(std::move(problem));
}

}  // namespace

VerifyReport CheckStep(FileSystem& fs, const std::string& directory, const CheckOptions& options,
                       const std::function<void(uint64_t)>& progress) {
  VerifyReport report{.problems = CheckFiles(fs, directory)};
  if (!report.problems.empty()) return report;
  const auto step = StepReader::Open(fs, directory);
  if (!step.ok()) {
    report.problems.push_back({directory, 0, "", step.status().message()});
    return report;
  }
  const auto from_here = [&progress, &report](uint64_t done) {
    if (progress) progress(report.bytes_checked + done);
  };
  if (options.structure) Append(report, VerifyStructure(**step));
  if (options.hash) {
    Append(report, options.sample ? CheckSample(**step, *options.sample, from_here)
                                  : VerifyHash(fs, **step, from_here, options.jobs));
  }
  if (options.values) Append(report, CheckValues(**step, options.max_memory, from_here));
  return report;
}

}  // namespace cairn
