#include "tools/archive/restore.h"

#include <filesystem>

#include "ckpt/layout.h"
#include "convert/partial_dir.h"
#include "tools/archive/stream_writer.h"
#include "tools/archive/tar_file_system.h"
#include "tools/archive/verified_copy.h"

namespace cairn {
namespace {

// Name and place of a destination: "a/b/" and "b" have the same file name as "a/b".
std::filesystem::path Normal(const std::string& destination) {
  std::filesystem::path path = std::filesystem::path(destination).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path;
}

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
  const VerifyReport report = VerifyHash(fs, *restored, [&](uint64_t read) {
    if (progress) progress(extracted + read);
  });
  return report.problems.empty() ? OkStatus() : Corrupt("{}", ToString(report.problems.front()));
}

}  // namespace

Status RestoreTar(FileSystem& fs, const std::string& store, const std::string& tar,
                  const std::string& destination, const ByteProgress& progress) {
  const std::string tar_path = JoinPath(store, tar);
  CAIRN_ASSIGN_OR_RETURN(const auto view, TarFileSystem::Open(fs, tar_path, /*past_cache=*/false));
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(*view, tar_path));
  const std::filesystem::path target = Normal(destination);
  CAIRN_RETURN_IF_ERROR(CheckDestination(fs, target, *step));
  CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, target, step->manifest().bytes()));
  CAIRN_ASSIGN_OR_RETURN(PartialDir partial,
                         PartialDir::Make(fs, fmt::format("{}.partial-{}", target.string(), NewNonce())));
  CAIRN_RETURN_IF_ERROR(Extract(fs, *view, *step, partial.path(), progress));
  CAIRN_RETURN_IF_ERROR(VerifyRestored(fs, partial.path(), step->manifest().bytes(), progress));
  CAIRN_RETURN_IF_ERROR(fs.Rename(partial.path(), target));
  partial.Keep();
  return fs.SyncDir(target.has_parent_path() ? target.parent_path() : ".");
}

}  // namespace cairn
