#include "tools/archive/tar/verified_copy.h"

#include "ckpt/step/verify.h"

namespace cairn {

Status CopyVerified(FileSystem& fs, const StepReader& step, const ManifestFile& file, const ByteSink& sink) {
  const StepIdentity identity{step.manifest().run, step.manifest().step};
  VerifyReport report;
  CAIRN_RETURN_IF_ERROR(VerifyShard(fs, {step.DirectoryOf(file.name), file, step.catalog(), identity}, report,
                                    sink, /*may_map=*/false));
  CAIRN_RETURN_IF_ERROR(report.status());
  if (report.bytes_checked != file.bytes)
    return Corrupt("{}: {} of {} bytes were read", JoinPath(step.DirectoryOf(file.name), file.name),
                   report.bytes_checked, file.bytes);
  return OkStatus();
}

}  // namespace cairn
