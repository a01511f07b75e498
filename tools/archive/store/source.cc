// A run of Cairn without a committed step is an error: a save that was not finished must not be archived as
// mere files.

#include "tools/archive/store/source.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <optional>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/step/step_reader.h"
#include "tools/seal/place.h"
#include "tools/seal/seal_record.h"

namespace cairn {
namespace {

constexpr size_t kMaxNameBytes = 180;  // a file name has 255; steps, digits and suffixes follow

// Valid as a file name and in RUN@STEP. Names may be equal: the content distinguishes members.
std::string PlainName(std::string_view of) {
  std::string name(of);
  name.resize(std::min(name.size(), kMaxNameBytes));
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) &&
        std::string_view("._-").find(c) == std::string_view::npos)
      c = '_';
  return IsPlainFileName(name) ? name : "run";
}

Status Expand(FileSystem& fs, const std::string& given, std::vector<ArchiveSource>& sources) {
  CAIRN_ASSIGN_OR_RETURN(const Place place, Locate(fs, given));
  const std::string& path = place.path;
  const Status nothing = NotFound("{}: neither a committed step nor a run directory with one", path);
  switch (place.kind) {
    case PlaceKind::kFile:
      return NotSupported("{} is a file; name the directory that it is in", path);
    case PlaceKind::kUnfinishedRun:
      return nothing;
    case PlaceKind::kStep:
      sources.push_back({.path = path});
      break;
    case PlaceKind::kRun: {
      CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, path));
      for (const int64_t step : steps)
        sources.push_back({.path = JoinPath(path, StepDirName(step)), .of_run = true});
      break;
    }
    case PlaceKind::kForeignRun:
      for (const ForeignStep& step : place.steps)
        sources.push_back({.path = step.path, .native = false, .of_run = true});
      break;
    case PlaceKind::kTree: {
      CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
      if (names.empty()) return nothing;
      [[fallthrough]];
    }
    case PlaceKind::kIteration:
    case PlaceKind::kForeignStep:
      sources.push_back({.path = path, .native = false});
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<ArchiveSource>> ExpandSources(FileSystem& fs, const std::vector<std::string>& arguments) {
  std::vector<ArchiveSource> sources;
  for (const std::string& argument : arguments) CAIRN_RETURN_IF_ERROR(Expand(fs, argument, sources));
  return sources;
}

std::string WhyPassedOver(FileSystem& fs, const ArchiveSource& source) {
  if (source.native || HasSeal(fs, source.path)) return "";
  const auto step = ForeignStepOf(fs, source.path);
  const auto files = ListStepFiles(fs, source.path);
  if (!step || !files.ok()) return "";
  const std::string why =
      WhyUnfinished(fs, {source.path, step}, *files, /*strict=*/source.of_run, std::time(nullptr), 0);
  return why.empty() ? "" : fmt::format("{} is being written: {}", source.path, why);
}

ArchiveRecord DescribeSource(const StepReader& step) {
  const std::string canonical = CanonicalPath(step.directory());
  ArchiveRecord record = RecordOf(step.manifest(), PlainName(LastName(ParentDir(canonical))));
  record.source = canonical;
  return record;
}

ArchiveRecord NameTree(FileSystem& fs, const std::string& directory) {
  const std::string canonical = CanonicalPath(directory);
  const std::string name = PlainName(LastName(canonical));
  const auto step = ForeignStepOf(fs, canonical);
  const std::string run = step ? PlainName(LastName(ParentDir(canonical))) : name;
  ArchiveRecord record{.name = run, .step = step.value_or(0), .directory = JoinPath(run, name)};
  record.form = Form::kFiles;
  record.source = canonical;
  return record;
}

Status CheckManifestUnchanged(FileSystem& fs, const std::string& step_dir, std::string_view digest) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(fs, JoinPath(step_dir, kManifestName), kMaxManifestBytes));
  if (ToHex(DigestOf(text)) != digest) return Corrupt("{}: saved again meanwhile; run this again", step_dir);
  return OkStatus();
}

}  // namespace cairn
