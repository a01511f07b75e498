#include "ckpt/run/local_branch.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "ckpt/io/replace_file.h"
#include "ckpt/io/strict_json.h"

namespace cairn {
namespace {

constexpr std::string_view kLocalNoteName = "local";
constexpr uint64_t kMostLocalNoteBytes = 1 << 20;

Status WriteLocalNote(FileSystem& fs, const std::string& run_dir, const std::string& run,
                      const std::vector<EarlierBranch>& branches) {
  nlohmann::json json = DescentJson({.branches = branches});
  json["run"] = run;
  return ReplaceSmallFile(fs, JoinPath(run_dir, kLocalNoteName), json.dump() + "\n");
}

std::optional<BranchedStep> Parse(const std::string& text) {
  const Result<nlohmann::json> json = ParseStrictJson(text);
  if (!json.ok() || !json->is_object()) return std::nullopt;
  try {
    return BranchedStep{-1, json->at("run").get<std::string>(), DescentAt(*json)};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

Result<std::optional<BranchedStep>> ReadLocalNote(FileSystem& fs, const std::string& run_dir) {
  const std::string path = JoinPath(run_dir, kLocalNoteName);
  const Result<FileInfo> info = fs.Stat(path);
  if (info.status().kind() == StatusKind::kNotFound) return std::optional<BranchedStep>();
  CAIRN_RETURN_IF_ERROR(info.status());
  std::optional<BranchedStep> note;
  if (info->kind == FileKind::kFile) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, kMostLocalNoteBytes));
    note = Parse(text);
  }
  if (note) return note;
  return Corrupt(
      "{} is not what Cairn notes there about the steps on the run's nodes; move it away (steps on nodes "
      "that "
      "were given up may then be resumed from)",
      path);
}

Status NoteLocalBranch(FileSystem& fs, const std::string& run_dir, const std::string& run,
                       const Descent& descent, int64_t& noted) {
  const int64_t branch = std::ssize(descent.branches);
  if (noted >= branch) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const auto note, ReadLocalNote(fs, run_dir));
  if (BranchOf(note) < branch) CAIRN_RETURN_IF_ERROR(WriteLocalNote(fs, run_dir, run, descent.branches));
  noted = branch;
  return OkStatus();
}

// A branch without a step: the next commit comes after it.
Result<int64_t> GiveUpLocalSteps(FileSystem& fs, const std::string& run_dir,
                                 const std::optional<BranchedStep>& after) {
  CAIRN_ASSIGN_OR_RETURN(const auto note, ReadLocalNote(fs, run_dir));
  if (!note) return BranchOf(note);
  Descent next = NextDescent(std::numeric_limits<int64_t>::max(), note->run, note, after);
  if (!after) next.branches.assign(note->descent.branches.size() + 1, {note->run, -1});
  CAIRN_RETURN_IF_ERROR(WriteLocalNote(fs, run_dir, note->run, next.branches));
  return std::ssize(next.branches);
}

Descent AfterLocalBranch(Descent next, int64_t step, const std::string& run,
                         const std::optional<BranchedStep>& newest, int64_t local_branch) {
  const auto behind = [&] { return static_cast<int64_t>(next.branches.size()) <= local_branch; };
  const bool continues = newest && next.branches.size() == newest->descent.branches.size();
  if (behind() && continues) next.branches.push_back({newest->run, std::min(newest->step, step - 1)});
  while (behind()) next.branches.push_back({run, -1});
  return next;
}

}  // namespace cairn
