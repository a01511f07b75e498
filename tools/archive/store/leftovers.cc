#include "tools/archive/store/leftovers.h"

#include <optional>

#include "ckpt/base/digest.h"
#include "ckpt/base/nonce.h"
#include "ckpt/io/mount_points.h"
#include "ckpt/step/partial_dir.h"
#include "tools/archive/store/bundle.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

constexpr std::string_view kDeletingSuffix = ".deleting";
constexpr std::string_view kOldStagingPrefix = ".staging-";  // an earlier Cairn's, without a mark
constexpr std::string_view kStatusPrefix = "status.json.";

bool IsNonce(std::string_view text) { return text.size() == kNonceDigits && IsHex(text); }

bool IsTar(std::string_view name) { return ParseTarName(name) || ParseBundleName(name); }

std::optional<std::string_view> Without(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  return name;
}

// True for files that Cairn writes under NAME.partial first.
bool IsWritten(std::string_view name) {
  if (IsTar(name) || ParseTarPieceName(name)) return true;
  for (const std::string_view suffix : {std::string_view(".json"), kParitySuffix})
    if (const auto tar = Without(name, suffix); tar && IsTar(*tar)) return true;
  if (name.starts_with(kStatusPrefix) && IsNonce(name.substr(kStatusPrefix.size()))) return true;
  return name == kReadmeName || name == kUnpackName || name == kTeamName;
}

}  // namespace

Status RemoveMember(const Store& store, const std::string& file) {
  FileSystem& fs = store.fs();
  const std::string path = store.Path(file);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(path));
  if (info.kind != FileKind::kFile)
    return InvalidArgument("{} is a link or not a file; it was not removed, remove it by hand", path);
  CAIRN_RETURN_IF_ERROR(fs.Rename(path, fmt::format("{}{}", path, kDeletingSuffix)));
  CAIRN_RETURN_IF_ERROR(store.Sync());
  return EndRemoval(store, file);
}

Status EndRemoval(const Store& store, const std::string& file) {
  FileSystem& fs = store.fs();
  const std::string path = store.Path(file);
  CAIRN_ASSIGN_OR_RETURN(auto pieces, ListTarPieces(fs, store.directory()));
  for (const std::string& beside : {store.Sidecar(file), store.Parity(file)})
    CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, beside));
  for (const size_t number : pieces[file])
    CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, TarPieceName(path, number)));
  // The renamed tar shows that the removal must continue, so it goes last.
  CAIRN_RETURN_IF_ERROR(store.Sync());
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, fmt::format("{}{}", path, kDeletingSuffix)));
  return store.Sync();
}

Leftover LeftoverOf(std::string_view name, FileKind kind) {
  if (kind != FileKind::kFile) return Leftover::kNone;
  if (const auto tar = Without(name, kDeletingSuffix); tar && IsTar(*tar)) return Leftover::kRemoval;
  if (const auto written = Without(name, kPartialSuffix); written && IsWritten(*written))
    return Leftover::kPartial;
  return Leftover::kNone;
}

bool LooksLikeLeftover(std::string_view name) {
  return name.ends_with(kPartialSuffix) || name.ends_with(kDeletingSuffix) ||
         name.starts_with(kOldStagingPrefix) || name.starts_with(kStatusPrefix);
}

Status PrepareStore(const Store& store, const StoreNote& note) {
  if (const std::string why = LocalLocksWarning(store.directory()); !why.empty()) note(why);
  CAIRN_RETURN_IF_ERROR(WriteStoreReadme(store));
  return CleanStore(store, note);
}

Status CleanStore(const Store& store, const StoreNote& note) {
  FileSystem& fs = store.fs();
  RemoveLeftovers(fs, store.Path(kStagingName));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, store.List());
  for (const std::string& name : names) {
    if (!LooksLikeLeftover(name)) continue;
    const std::string path = store.Path(name);
    const Result<FileInfo> info = fs.LinkStat(path);
    if (info.status().kind() == StatusKind::kNotFound) continue;
    CAIRN_RETURN_IF_ERROR(info.status());
    switch (LeftoverOf(name, info->kind)) {
      case Leftover::kPartial:
        CAIRN_RETURN_IF_ERROR(fs.RemoveFile(path));
        break;
      case Leftover::kRemoval:
        CAIRN_RETURN_IF_ERROR(EndRemoval(store, name.substr(0, name.size() - kDeletingSuffix.size())));
        break;
      case Leftover::kNone:
        note(fmt::format("{} was not removed: it is not known to be Cairn's", path));
    }
  }
  return OkStatus();
}

}  // namespace cairn
