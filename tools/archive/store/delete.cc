#include "tools/archive/store/delete.h"

#include <filesystem>

#include "ckpt/base/canonical_path.h"
#include "ckpt/step/partial_dir.h"
#include "tools/archive/store/tree.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

// A copy that was read back in this process, and whose files are still there.
class StoredCopy final : public DeletionProof {
 public:
  StoredCopy(const Store& store, const ProvenCopy& copy)
      : place_(store.Place(copy.record())), bytes_(copy.record().bundle_offset + copy.record().tar_bytes) {}
  Status Check(FileSystem& fs) const override {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, StatTar(fs, place_));
    if (bytes >= bytes_) return OkStatus();
    return Corrupt("{}: shorter than when it was proven; the source stays", place_.file);
  }
  std::string Text() const override { return "stored as " + place_.file; }

 private:
  const TarPlace place_;
  const uint64_t bytes_;
};

// Besides the copy, a good step that stays on scratch.
class CopyAndSuccessor final : public DeletionProof {
 public:
  CopyAndSuccessor(const DeletionProof& copy, const DeletionProof* stays) : copy_(copy), stays_(stays) {}
  Status Check(FileSystem& fs) const override {
    CAIRN_RETURN_IF_ERROR(copy_.Check(fs));
    return stays_ != nullptr ? stays_->Check(fs)
                             : InvalidArgument("no other step of its run is known to be good; it stays");
  }
  std::string Text() const override {
    return stays_ == nullptr ? copy_.Text() : fmt::format("{}, {}", copy_.Text(), stays_->Text());
  }

 private:
  const DeletionProof& copy_;
  const DeletionProof* const stays_;
};

Status DeleteStepSource(FileSystem& fs, const std::filesystem::path& step, const ArchiveRecord& record,
                        const DeletionProof& proof, bool newest_too) {
  const std::string& manifest = record.form == Form::kWeights ? record.derived_from : record.manifest_digest;
  const std::optional<Digest> digest = ParseHex(manifest);
  if (!digest) return Corrupt("{}: its record names no manifest", record.name);
  return DeleteStep(fs,
                    {.run_dir = step.parent_path().string(),
                     .name = step.filename().string(),
                     .manifest = *digest,
                     .nonce = NewNonce(),
                     .newest_too = newest_too},
                    proof);
}

// What goes are the tree's own entries: a link goes as a link, also where what it leads to was stored in its
// place.
Status DeleteTreeSource(FileSystem& fs, const std::string& directory, const ArchiveRecord& record,
                        const DeletionProof& proof) {
  if (!record.tree)
    return InvalidArgument(
        "{}: was stored by an older Cairn, which kept neither modes nor links; store it again before it is "
        "removed",
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

// Where the thing itself lies: links above it are resolved, so that lock and holds are looked for in the run
// that it really belongs to; the thing itself may not be one (deletion.h).
std::filesystem::path RealPlace(const std::string& path) {
  std::filesystem::path plain = std::filesystem::absolute(path).lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  return std::filesystem::path(CanonicalPath(plain.parent_path().string())) / plain.filename();
}

}  // namespace

Status DeleteSource(const Store& store, const std::string& path, const ProvenCopy& copy, bool newest_too,
                    const DeletionProof* stays) {
  const std::filesystem::path source = RealPlace(path);
  if ((CanonicalPath(store.directory()) + "/").starts_with(CanonicalPath(source.string()) + "/"))
    return InvalidArgument("{}: the store lies within it; the source stays", path);
  const StoredCopy stored(store, copy);
  if (copy.record().form == Form::kFiles)
    return DeleteTreeSource(store.fs(), source.string(), copy.record(), stored);
  const CopyAndSuccessor both(stored, stays);
  return DeleteStepSource(store.fs(), source, copy.record(),
                          newest_too ? static_cast<const DeletionProof&>(stored) : both, newest_too);
}

}  // namespace cairn
