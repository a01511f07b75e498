// A run of Cairn without a committed step is an error: a save that was not finished must not be archived as
// mere files.

#include "tools/archive/store/source.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/step_reader.h"
#include "tools/place/finished.h"
#include "tools/place/place.h"

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

// Errors: as of ExpandSources().
Result<std::vector<FoundStep>> Expand(FileSystem& fs, const std::string& argument,
                                      std::vector<std::string>& notes) {
  CAIRN_ASSIGN_OR_RETURN(Place place, Locate(fs, argument));
  const std::string& path = place.path;
  if (place.kind == PlaceKind::kMember) return NotSupported("{} is in a store already", argument);
  if (place.kind == PlaceKind::kFile)
    return NotSupported("{} is a file; name the directory that it is in", path);
  if (place.of_node())
    return NotSupported("{}: local steps, of which other nodes have the rest; name the run", path);
  if (place.kind == PlaceKind::kIteration) return std::vector{FoundStepAt(fs, path)};
  bool nothing = place.kind == PlaceKind::kUnfinishedRun;
  if (place.kind == PlaceKind::kTree) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
    nothing = names.empty();
  }
  if (place.kind == PlaceKind::kFileRun) return std::vector{FoundStepAt(fs, path)};  // as a tree
  if (nothing) return NotFound("{}: neither a committed step nor a run directory with one", path);
  NoteCheckpointBeside(fs, place, notes);
  return std::move(place.steps);
}

}  // namespace

Result<std::vector<FoundStep>> ExpandSources(FileSystem& fs, const std::vector<std::string>& arguments,
                                             std::vector<std::string>& notes) {
  std::vector<FoundStep> sources;
  for (const std::string& argument : arguments) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<FoundStep> steps, Expand(fs, argument, notes));
    std::ranges::move(steps, std::back_inserter(sources));
  }
  return sources;
}

void NoteCheckpointBeside(FileSystem& fs, const Place& place, std::vector<std::string>& notes) {
  const std::string beside = CheckpointBesideSteps(fs, place);
  if (!beside.empty())
    notes.push_back(
        beside + ", and is not stored; to store it, too, copy it to a directory of its own, and name that");
}

std::string WhyPassedOver(FileSystem& fs, const FoundStep& source) {
  if (source.native || source.sealed || !source.step) return "";
  const auto files = ListStepFiles(fs, source.path);
  const std::string why = files.ok() ? WhyUnfinished(fs, source, *files, /*strict=*/source.of_run) : "";
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
  const auto step = FoundStepAt(fs, canonical).step;
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
