#include "ckpt/run/local_branch.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/io/replace_file.h"
#include "ckpt/io/strict_json.h"

namespace cairn {
namespace {

constexpr std::string_view kLocalNoteName = "local";
constexpr uint64_t kMostLocalNoteBytes = 4096;
constexpr int64_t kMostBranches = 1 << 20;

}  // namespace

Result<int64_t> LocalBranch(FileSystem& fs, const std::string& run_dir) {
  const std::string path = JoinPath(run_dir, kLocalNoteName);
  const Result<std::string> text = ReadSmallFile(fs, path, kMostLocalNoteBytes);
  if (text.status().kind() == StatusKind::kNotFound) return -1;
  if (!text.ok()) return text.status();
  const Result<nlohmann::json> json = ParseStrictJson(*text);
  const nlohmann::json branch =
      json.ok() && json->is_object() ? json->value("branch", nlohmann::json()) : nlohmann::json();
  if (!branch.is_number_unsigned() || branch > kMostBranches)
    return Corrupt("{}: not a branch of local steps; remove it if no node has any", path);
  return branch.get<int64_t>();
}

Status NoteLocalBranch(FileSystem& fs, const std::string& run_dir, int64_t branch) {
  const Result<int64_t> noted = LocalBranch(fs, run_dir);
  if (noted.ok() && *noted >= branch) return OkStatus();
  const nlohmann::json json = {{"branch", branch}};
  return ReplaceSmallFile(fs, JoinPath(run_dir, kLocalNoteName), json.dump() + "\n");
}

Status NoteLocalBranch(FileSystem& fs, const std::string& run_dir, const Descent& descent, int64_t& noted) {
  const int64_t branch = std::ssize(descent.branches);
  if (noted >= branch) return OkStatus();
  CAIRN_RETURN_IF_ERROR(NoteLocalBranch(fs, run_dir, branch));
  noted = branch;
  return OkStatus();
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
