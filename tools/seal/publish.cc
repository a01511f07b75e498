// With an exchange there are two states, before and after it. Without one, the old directory is moved aside
// during one rename. A caller that removes `from` afterwards syncs first (SyncAbove does): otherwise a power
// loss could undo the exchange after the old files are gone.

#include "tools/seal/publish.h"

#include "ckpt/base/canonical_path.h"
#include "ckpt/step/partial_dir.h"
#include "ckpt/step/replace_by_renames.h"
#include "tools/place/place.h"

namespace cairn {
namespace {

constexpr std::string_view kAsideName = ".replaced";

Status ExchangeByRenames(FileSystem& fs, const std::string& from, const std::string& to) {
  const std::string aside = AsidePath(from);
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, ParentDir(aside)));
  CAIRN_RETURN_IF_ERROR(ReplaceByRenames(fs, from, to, aside));
  return fs.Rename(aside, from);
}

}  // namespace

std::string AsidePath(const std::string& from) {
  return JoinPath(JoinPath(ParentDir(from), kAsideName), LastName(from));
}

Status CheckPublish(FileSystem& fs, const std::string& from, const std::string& to) {
  CAIRN_RETURN_IF_ERROR(fs.Stat(ParentDir(to)).status());
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, to));
  if (!fs.LinkStat(to).ok()) return OkStatus();
  if (fs.LinkStat(AsidePath(from)).ok())
    return AlreadyExists("{} was left by an interrupted publication, and {} exists; move one of them away",
                         AsidePath(from), to);
  return StepsToSeal(fs, to).status();
}

Result<bool> PublishDirectory(FileSystem& fs, const std::string& from, const std::string& to) {
  if (!fs.LinkStat(to).ok() && fs.LinkStat(AsidePath(from)).ok())
    CAIRN_RETURN_IF_ERROR(fs.Rename(AsidePath(from), to));
  const bool replaces = fs.LinkStat(to).ok();
  Status published = replaces ? fs.Exchange(from, to) : fs.Rename(from, to);
  if (published.kind() == StatusKind::kNotSupported) published = ExchangeByRenames(fs, from, to);
  CAIRN_RETURN_IF_ERROR(published);
  CAIRN_RETURN_IF_ERROR(SyncAbove(fs, to, from));
  return replaces;
}

}  // namespace cairn
