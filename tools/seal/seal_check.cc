#include "tools/seal/seal_check.h"

#include <map>
#include <utility>

#include "tools/place/step_files.h"
#include "tools/seal/read_files.h"

namespace cairn {
namespace {

struct SealLook {
  SealReport report;
  std::vector<const SealedFile*> to_read;
};

SealLook LookAtSealed(FileSystem& fs, const std::string& directory, const Seal& seal, SealDepth depth) {
  SealLook look;
  const auto problem = [&](const std::string& name, std::string what) {
    look.report.problems.push_back({JoinPath(directory, name), {}, "", std::move(what)});
  };
  const auto files = ListStepFiles(fs, directory);
  if (!files.ok()) {
    look.report.Add(files.status(), directory);
    return look;
  }
  std::map<std::string, const StepFile*> there;
  for (const StepFile& file : *files) there[file.name] = &file;
  for (const SealedFile& sealed : seal.files) {
    if (!IsContent(sealed.name)) continue;
    const auto found = there.find(sealed.name);
    if (found == there.end()) {
      problem(sealed.name, fmt::format("is missing; {} bytes were sealed", sealed.bytes));
      continue;
    }
    const StepFile& file = *std::exchange(found->second, nullptr);
    const bool touched = file.modified_unix_seconds != sealed.modified_unix_seconds;
    if (file.bytes != sealed.bytes) {
      problem(sealed.name, fmt::format("has {} bytes; {} were sealed", file.bytes, sealed.bytes));
      continue;
    }
    if (touched) look.report.touched.push_back(JoinPath(directory, sealed.name));
    if (depth == SealDepth::kAll || (depth == SealDepth::kTouched && touched))
      look.to_read.push_back(&sealed);
  }
  for (const auto& [name, file] : there) {
    if (!file) continue;
    look.report.added.push_back(JoinPath(directory, name));
    problem(name, "was added after the seal");
  }
  return look;
}

}  // namespace

SealReport CheckSeal(FileSystem& fs, const std::string& directory, const Seal& seal, SealDepth depth,
                     int jobs, const std::function<void(uint64_t done, uint64_t bytes)>& progress) {
  SealLook look = LookAtSealed(fs, directory, seal, depth);
  std::vector<FileToRead> to_read;
  uint64_t bytes = 0;
  for (const SealedFile* file : look.to_read) {
    to_read.push_back({.name = file->name, .bytes = file->bytes});
    bytes += file->bytes;
  }
  const auto tell = [&](uint64_t done) {
    if (progress) progress(done, bytes);
  };
  const std::vector<FileRead> read = ReadFiles(fs, directory, to_read, {.jobs = jobs, .progress = tell});
  for (size_t i = 0; i < read.size(); ++i) {
    const std::string path = JoinPath(directory, to_read[i].name);
    look.report.bytes_checked += to_read[i].bytes;
    if (!read[i].status.ok())
      look.report.Add(read[i].status, path);
    else if (read[i].digest != look.to_read[i]->digest)
      look.report.problems.push_back({path, {}, "", "its bytes are not those that were sealed"});
  }
  return std::move(look.report);
}

}  // namespace cairn
