// The name of a hold follows from the virtual step's directory, which keeps its inode and birth time when it
// is renamed. If the file system does not say when it was born, the name follows from its path.

#include "ckpt/run/step_hold.h"

#include <fmt/chrono.h>

#include <ctime>
#include <filesystem>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/digest.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_identity.h"
#include "ckpt/step/partial_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxHoldBytes = 64 << 10;

struct HoldPlace {
  std::string directory;  // RUN/held; empty: nothing retires the step
  std::string name;
};

HoldPlace PlaceOf(const std::string& step_dir, const std::string& holder, const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(JoinPath(step_dir, "")).parent_path();
  const std::optional<int64_t> step = ParseStepDirName(path.filename().string());
  if (!step) return {};
  const Result<DirectoryFacts> facts = FactsOfDirectory(directory);
  const bool born = facts.ok() && facts->born_unix_nanoseconds != 0;
  const std::string who = born ? fmt::format("{} {}", facts->inode, facts->born_unix_nanoseconds) : holder;
  return {JoinPath(path.parent_path().string(), kHeldName),
          HoldName(*step, ToHex(DigestOf(who)).substr(0, 8))};
}

// Replaces an older one without a gap: HoldsOf() may look at any moment.
Status WriteHold(FileSystem& fs, const HoldPlace& place, const std::string& holder, bool published) {
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, place.directory));
  const nlohmann::json json = {{"holder", holder}, {"published", published}};
  const std::string text = json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  CAIRN_RETURN_IF_ERROR(
      WriteAndRename(fs, JoinPath(place.directory, fmt::format("next-{}-{}", NewNonce(), place.name)),
                     JoinPath(place.directory, place.name), text));
  return fs.SyncDir(place.directory);
}

// Earlier versions wrote only the path. A hold that is not understood still holds.
Hold ReadHold(FileSystem& fs, const std::string& file, bool& announced) {
  Hold hold{.file = file};
  const Result<std::string> text = ReadSmallFile(fs, file, kMaxHoldBytes);
  if (text.ok()) hold.holder = text->substr(0, text->find('\n'));
  const auto json = nlohmann::json::parse(text.ok() ? *text : "", nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) hold.holder = TextField(json, "holder");
  announced = json.is_object() && json.value("published", nlohmann::json()) == false;
  hold.there = !hold.holder.empty() && fs.Stat(JoinPath(hold.holder, kManifestName)).ok();
  if (const auto info = fs.Stat(file); info.ok()) hold.modified_unix_seconds = info->modified_unix_seconds;
  return hold;
}

// By both this host's clock and the file system's: one of them may be hours ahead. If the latter cannot be
// read, nothing can be removed either.
bool IsOld(FileSystem& fs, const std::string& directory, const Hold& hold) {
  const int64_t since = hold.modified_unix_seconds;
  if (since == 0 || std::time(nullptr) - since <= kAnnouncedSeconds) return false;
  const std::string probe = JoinPath(directory, fmt::format("next-{}-clock", NewNonce()));
  if (!WriteSmallFile(fs, probe, "").ok()) return false;
  const Result<FileInfo> now = fs.Stat(probe);
  (void)fs.RemoveFile(probe);
  return now.ok() && now->modified_unix_seconds - since > kAnnouncedSeconds;
}

// The step that has the shards of the virtual step in `directory`.
std::string HeldStep(const std::string& directory, const Manifest& manifest) {
  return manifest.shards.empty() ? "" : CanonicalPath(JoinPath(directory, manifest.shards));
}

}  // namespace

std::string Hold::Text() const {
  const int64_t since = modified_unix_seconds;
  return fmt::format("{} uses its shards{}{}; to let it go: rm {}",
                     holder.empty() ? "an unknown step" : holder,
                     since == 0 ? "" : fmt::format(" since {:%Y-%m-%d}", fmt::gmtime(since)),
                     there ? "" : ", and does not exist now", file);
}

Result<std::vector<Hold>> HoldsOf(FileSystem& fs, const std::string& run_dir, int64_t step) {
  const std::string directory = JoinPath(run_dir, kHeldName);
  const Result<std::vector<std::string>> names = fs.List(directory);
  if (!names.ok() && names.status().kind() == StatusKind::kNotFound) return std::vector<Hold>();
  if (!names.ok()) return names.status();
  std::vector<Hold> holds;
  for (const std::string& name : *names) {
    if (!name.starts_with(HoldName(step, ""))) continue;
    bool announced = false;
    Hold hold = ReadHold(fs, JoinPath(directory, name), announced);
    if (!announced || hold.there || !IsOld(fs, directory, hold)) holds.push_back(std::move(hold));
  }
  return holds;
}

Status AnnounceHold(FileSystem& fs, const std::string& step_dir, const std::string& holder,
                    const std::string& directory) {
  const HoldPlace place = PlaceOf(step_dir, holder, directory);
  return place.name.empty() ? OkStatus() : WriteHold(fs, place, holder, /*published=*/false);
}

void RenewHold(FileSystem& fs, const std::string& directory, const Manifest& manifest) {
  const std::string step_dir = HeldStep(directory, manifest), holder = CanonicalPath(directory);
  if (step_dir.empty() || !ParseStepDirName(std::filesystem::path(holder).filename().string())) return;
  const HoldPlace place = PlaceOf(step_dir, holder, directory);
  if (place.name.empty() || !fs.Stat(JoinPath(step_dir, kManifestName)).ok()) return;
  bool announced = false;
  const Hold hold = ReadHold(fs, JoinPath(place.directory, place.name), announced);
  if (hold.holder != holder || announced) (void)WriteHold(fs, place, holder, /*published=*/true);
}

void EndHold(FileSystem& fs, const std::string& holder, const std::string& directory,
             const Manifest& manifest) {
  const std::string step_dir = HeldStep(directory, manifest);
  const HoldPlace place = PlaceOf(step_dir, CanonicalPath(holder), directory);
  if (step_dir.empty() || place.name.empty()) return;
  bool announced = false;
  const std::string file = JoinPath(place.directory, place.name);
  const Hold hold = ReadHold(fs, file, announced);
  // On a clone of a file system the hold may be that of the step that was cloned.
  if (!hold.there || hold.holder == CanonicalPath(holder)) (void)fs.RemoveFile(file);
}

}  // namespace cairn
