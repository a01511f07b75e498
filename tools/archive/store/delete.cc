#include "tools/archive/store/delete.h"

#include "ckpt/base/canonical_path.h"
#include "ckpt/step/partial_dir.h"
#include "tools/archive/store/tree.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

// A copy that was read back in this process, and whose files still exist; and usually a good step that stays
// on scratch.
class StoredCopy final : public DeletionProof {
 public:
  // `stays`: null if none is known. `alone`: no other step need stay.
  StoredCopy(const Store& store, const ArchiveRecord& record, const DeletionProof* stays, bool alone)
      : place_(store.Place(record)),
        bytes_(record.bundle_offset + record.tar_bytes),
        stays_(stays),
        alone_(alone) {}
  Status Check(FileSystem& fs) const override {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, StatTar(fs, place_));
    if (bytes < bytes_)
      return Corrupt("{}: shorter than when it was proven; the source is kept", place_.file);
    if (alone_) return OkStatus();
    if (stays_ != nullptr) return stays_->Check(fs);
    return InvalidArgument("nothing proves that it may go; it was not deleted");
  }
  std::string Text() const override {
    const std::string text = "stored as " + place_.file;
    return alone_ || stays_ == nullptr ? text : fmt::format("{}, {}", text, stays_->Text());
  }

 private:
  const TarPlace place_;
  const uint64_t bytes_;
  const DeletionProof* const stays_;
  const bool alone_;
};

Status DeleteStepSource(FileSystem& fs, const std::string& step, const ArchiveRecord& record,
                        const DeletionProof& proof, bool newest_too) {
  const std::optional<Digest> digest = ParseHex(ContentOf(record));
  if (!digest) return Corrupt("{}: its record does not name a manifest", record.name);
  return DeleteStep(fs,
                    {.run_dir = ParentDir(step),
                     .name = std::string(LastName(step)),
                     .manifest = *digest,
                     .nonce = NewNonce(),
                     .newest_too = newest_too},
                    proof);
}

// Removes the tree's own entries: a link as a link, even if the file it leads to was stored in its place.
Status DeleteTreeSource(FileSystem& fs, const std::string& directory, const ArchiveRecord& record,
                        const DeletionProof& proof) {
  if (!record.tree)
    return InvalidArgument(
        "{}: an older version stored it without modes and links; store it again before it is removed",
        directory);
  TreeDeletion deletion{.directory = directory, .files = {}, .directories = {}, .same = [&] {
                          return CheckTreeIs(fs, directory, record);
                        }};
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> entries, ListTree(fs, directory, Links::kKeep));
  for (const TreeFile& entry : entries) {
    if (entry.name.empty()) continue;
    (entry.kind == EntryKind::kDirectory ? deletion.directories : deletion.files).push_back(entry.name);
  }
  return DeleteTree(fs, deletion, proof);
}

}  // namespace

Status DeleteSource(const Store& store, const std::string& path, const ProvenCopy& copy, bool newest_too,
                    const DeletionProof* stays) {
  // Links above it are resolved, so that lock and holds are looked for in the run that it really belongs to.
  // The source itself may not be a link (deletion.h).
  const std::string source = PathInRealDirectory(path);
  if ((CanonicalPath(store.directory()) + "/").starts_with(CanonicalPath(source) + "/"))
    return InvalidArgument("{}: the store is inside it; the source is kept", path);
  const bool tree = copy.record().form == Form::kFiles;
  const StoredCopy proof(store, copy.record(), stays, !tree && newest_too);
  return tree ? DeleteTreeSource(store.fs(), source, copy.record(), proof)
              : DeleteStepSource(store.fs(), source, copy.record(), proof, newest_too);
}

}  // namespace cairn
