#include "tools/archive/source.h"

#include <cctype>
#include <filesystem>

#include "ckpt/layout.h"
#include "ckpt/run_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

// The run directory's name, fit for a file name and for RUN@STEP.
std::string RunNameOf(const std::string& canonical_step_dir) {
  std::string name = stdfs::path(canonical_step_dir).parent_path().filename().string();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) &&
        std::string_view("._-").find(c) == std::string_view::npos)
      c = '_';
  return IsPlainFileName(name) ? name : "run";
}

}  // namespace

Result<std::vector<std::string>> ExpandSources(FileSystem& fs, const std::vector<std::string>& arguments) {
  std::vector<std::string> sources;
  for (const std::string& argument : arguments) {
    CAIRN_RETURN_IF_ERROR(fs.Stat(argument).status());
    if (fs.Stat(JoinPath(argument, kManifestName)).ok()) {
      sources.push_back(argument);
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, argument));
    if (steps.empty()) return NotFound("{}: neither a committed step nor a run directory with one", argument);
    for (int64_t step : steps) sources.push_back(JoinPath(argument, StepDirName(step)));
  }
  return sources;
}

ArchiveRecord DescribeSource(const StepReader& step) {
  const std::string canonical = CanonicalPath(step.directory());
  ArchiveRecord record = RecordOf(step.manifest(), RunNameOf(canonical));
  record.source = canonical;
  return record;
}

Status CheckManifestUnchanged(FileSystem& fs, const std::string& step_dir, std::string_view digest) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(fs, JoinPath(step_dir, kManifestName), kMaxManifestBytes));
  if (ToHex(DigestOf(text)) != digest) return Corrupt("{}: was saved anew meanwhile; run again", step_dir);
  return OkStatus();
}

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const stdfs::path canonical = stdfs::weakly_canonical(path, error);
  std::string text = error ? path : canonical.string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

}  // namespace cairn
