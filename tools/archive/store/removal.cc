#include "tools/archive/store/removal.h"

#include "tools/archive/tar/record.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {

Status RemoveMember(const Store& store, const std::string& file) {
  FileSystem& fs = store.fs();
  const std::string path = store.Path(file);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(path));
  if (info.kind != FileKind::kFile)
    return InvalidArgument("{} is a link or no file; it stays, remove it by hand", path);
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
  // The tar's new name is what tells that this has to go on: it goes once the rest is gone for good.
  CAIRN_RETURN_IF_ERROR(store.Sync());
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, fmt::format("{}{}", path, kDeletingSuffix)));
  return store.Sync();
}

}  // namespace cairn
