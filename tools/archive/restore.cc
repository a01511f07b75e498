#include "tools/archive/restore.h"

#include <set>

#include "ckpt/layout.h"
#include "convert/partial_dir.h"
#include "convert/sha256.h"
#include "tools/archive/source.h"
#include "tools/archive/stream_writer.h"
#include "tools/archive/tar_file_system.h"
#include "tools/archive/verified_copy.h"

namespace cairn {
namespace {

// A checkpoint says which step it is; a directory's name must not say otherwise.
Status CheckDestination(FileSystem& fs, const std::filesystem::path& destination, const StepReader& step) {
  if (fs.Stat(destination).ok())
    return AlreadyExists("{} exists and is never overwritten; choose another destination",
                         destination.string());
  const auto named = ParseStepDirName(destination.filename().string());
  if (named && *named != step.manifest().step)
    return InvalidArgument("{}: the archived step is {}; name the destination {}", destination.string(),
                           step.manifest().step, StepDirName(step.manifest().step));
  return CheckCoverage(step.catalog()).WithContext(step.directory());
}

Status Extract(FileSystem& fs, FileSystem& view, const StepReader& step, const std::string& partial,
               const ByteProgress& progress) {
  WriteRing ring(fs);
  uint64_t done = 0;
  for (const ManifestFile& file : step.manifest().files) {
    CAIRN_ASSIGN_OR_RETURN(const auto out,
                           StreamWriter::Create(fs, ring, JoinPath(partial, file.name), file.bytes));
    CAIRN_RETURN_IF_ERROR(CopyVerified(view, step, file, [&](std::span<const std::byte> bytes) {
      done += bytes.size();
      if (progress) progress(done);
      return out->Append(bytes);
    }));
    CAIRN_RETURN_IF_ERROR(out->Finish());
  }
  CAIRN_RETURN_IF_ERROR(
      WriteSmallFile(fs, JoinPath(partial, kManifestName), EncodeManifest(step.manifest())));
  return fs.SyncDir(partial);
}

Status VerifyRestored(FileSystem& fs, const std::string& partial, uint64_t extracted,
                      const ByteProgress& progress) {
  CAIRN_ASSIGN_OR_RETURN(const auto restored, StepReader::Open(fs, partial));
  const auto tell = [&](uint64_t read) {
    if (progress) progress(extracted + read);
  };
  return VerifyHash(fs, *restored, tell).status();
}

// One file of a tree, compared with its SHA-256 on its way and again on the disk.
Status ExtractFile(FileSystem& fs, WriteRing& ring, TarFileSystem& view, const std::string& from,
                   const std::string& to, const ArchivedFile& file, const ByteSink& tell) {
  CAIRN_ASSIGN_OR_RETURN(const auto out, StreamWriter::Create(fs, ring, to, file.bytes));
  Sha256 sha;
  CAIRN_RETURN_IF_ERROR(ReadThrough(view, from, file.bytes, [&](std::span<const std::byte> bytes) {
    sha.Update(bytes);
    CAIRN_RETURN_IF_ERROR(tell(bytes));
    return out->Append(bytes);
  }));
  CAIRN_RETURN_IF_ERROR(out->Finish());
  if (sha.FinishHex() != file.sha256) return Corrupt("{}: does not match its SHA-256", from);
  Sha256 again;
  CAIRN_RETURN_IF_ERROR(ReadThrough(fs, to, file.bytes, [&](std::span<const std::byte> bytes) {
    again.Update(bytes);
    return tell(bytes);
  }));
  if (again.FinishHex() != file.sha256) return Corrupt("{}: the disk did not keep what was written", to);
  return OkStatus();
}

Status SyncBelow(FileSystem& fs, const std::string& path, const std::set<std::string>& below) {
  for (const std::string& directory : below) CAIRN_RETURN_IF_ERROR(fs.SyncDir(JoinPath(path, directory)));
  return fs.SyncDir(path);
}

Status RestoreTree(FileSystem& fs, TarFileSystem& view, const std::string& tar_path,
                   const ArchiveRecord& record, const std::filesystem::path& target,
                   const ByteProgress& progress) {
  uint64_t bytes = 0, done = 0;
  for (const ArchivedFile& file : record.files) bytes += file.bytes;
  CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, target, bytes));
  CAIRN_ASSIGN_OR_RETURN(PartialDir partial,
                         PartialDir::Make(fs, fmt::format("{}.partial-{}", target.string(), NewNonce())));
  WriteRing ring(fs);
  std::set<std::string> directories;
  for (const ArchivedFile& file : record.files) {
    for (size_t slash = file.name.find('/'); slash != file.name.npos; slash = file.name.find('/', slash + 1))
      if (const auto below = file.name.substr(0, slash); directories.insert(below).second)
        CAIRN_RETURN_IF_ERROR(fs.MakeDir(JoinPath(partial.path(), below)));
    CAIRN_RETURN_IF_ERROR(ExtractFile(fs, ring, view, JoinPath(tar_path, file.name),
                                      JoinPath(partial.path(), file.name), file,
                                      [&](std::span<const std::byte> part) {
                                        done += part.size();
                                        if (progress) progress(done);
                                        return OkStatus();
                                      }));
  }
  CAIRN_RETURN_IF_ERROR(SyncBelow(fs, partial.path(), directories));
  CAIRN_RETURN_IF_ERROR(fs.Rename(partial.path(), target));
  partial.Keep();
  return fs.SyncDir(ParentDir(target));
}

}  // namespace

std::filesystem::path DestinationPath(const std::string& destination) {
  std::filesystem::path path = std::filesystem::path(destination).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path;
}

Result<std::unique_ptr<TarFileSystem>> OpenMember(FileSystem& fs, const std::string& store,
                                                  const std::string& tar) {
  if (const auto record = ReadRecord(fs, store, tar); record.ok())
    return TarFileSystem::Open(fs, PlaceOf(store, *record), /*past_cache=*/false, *record);
  return TarFileSystem::Open(fs, JoinPath(store, tar), /*past_cache=*/false);
}

Status RestoreTar(FileSystem& fs, const std::string& store, const std::string& tar,
                  const std::string& destination, const ByteProgress& progress) {
  const std::filesystem::path target = DestinationPath(destination);
  CAIRN_ASSIGN_OR_RETURN(const auto view, OpenMember(fs, store, tar));
  const auto parts = ParseTarName(tar);
  if (parts && parts->form == Form::kFiles) {
    if (fs.Stat(target).ok())
      return AlreadyExists("{} exists and is never overwritten; choose another destination", target.string());
    // The headers are read too: what lies there must be what the sidecar says.
    CAIRN_ASSIGN_OR_RETURN(const ArchiveRecord record, ReadRecord(fs, store, tar));
    CAIRN_RETURN_IF_ERROR(ReadTarIndex(fs, PlaceOf(store, record)).status());
    return RestoreTree(fs, *view, view->root(), record, target, progress);
  }
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(*view, view->root()));
  CAIRN_RETURN_IF_ERROR(CheckDestination(fs, target, *step));
  CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, target, step->manifest().bytes()));
  CAIRN_ASSIGN_OR_RETURN(PartialDir partial,
                         PartialDir::Make(fs, fmt::format("{}.partial-{}", target.string(), NewNonce())));
  CAIRN_RETURN_IF_ERROR(Extract(fs, *view, *step, partial.path(), progress));
  CAIRN_RETURN_IF_ERROR(VerifyRestored(fs, partial.path(), step->manifest().bytes(), progress));
  CAIRN_RETURN_IF_ERROR(fs.Rename(partial.path(), target));
  partial.Keep();
  return fs.SyncDir(ParentDir(target));
}

}  // namespace cairn
