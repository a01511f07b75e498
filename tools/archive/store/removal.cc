#include "tools/archive/store/removal.h"

#include "tools/archive/tar/record.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {

Status RemoveMember(FileSystem& fs, const std::string& store, const std::string& file) {
  const std::string path = JoinPath(store, file);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(path));
  if (info.kind != FileKind::kFile)
    return InvalidArgument("{} is a link or no file; it stays, remove it by hand", path);
  CAIRN_RETURN_IF_ERROR(fs.Rename(path, fmt::format("{}{}", path, kDeletingSuffix)));
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(store));
  return EndRemoval(fs, store, file);
}

Status EndRemoval(FileSystem& fs, const std::string& store, const std::string& file) {
  const std::string path = JoinPath(store, file);
  CAIRN_ASSIGN_OR_RETURN(auto pieces, ListTarPieces(fs, store));
  for (const std::string_view suffix : {std::string_view(".json"), kParitySuffix})
    CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, fmt::format("{}{}", path, suffix)));
  for (const size_t number : pieces[file])
    CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, TarPieceName(path, number)));
  // The tar's new name is what tells that this has to go on: it goes once the rest is gone for good.
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(store));
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, fmt::format("{}{}", path, kDeletingSuffix)));
  return fs.SyncDir(store);
}

}  // namespace cairn
