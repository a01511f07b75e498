#include "tools/archive/restore_part.h"

#include <filesystem>

#include "convert/block_stream.h"
#include "convert/partial_dir.h"
#include "convert/safetensors_writer.h"
#include "convert/strip.h"
#include "convert/tensor_glob.h"
#include "tools/archive/source.h"

namespace cairn {

Status RestoreWeights(FileSystem& fs, CheckpointSource& step, const std::string& destination) {
  std::filesystem::path target = std::filesystem::path(destination).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  if (fs.Stat(target).ok())
    return AlreadyExists("{} exists and is never overwritten; choose another destination", target.string());
  const std::string run_dir = fmt::format("{}.partial-{}", target.string(), NewNonce());
  StripOptions options{.dtype = std::nullopt, .format = StripFormat::kNative};
  options.command = "cairn archive restore --weights-only";
  const Result<StripResult> stripped = Strip(fs, step, run_dir, options);
  Status status = stripped.status();
  if (status.ok()) status = fs.Rename(stripped->path, target);
  if (fs.Stat(run_dir).ok()) (void)RemoveDeep(fs, run_dir);
  CAIRN_RETURN_IF_ERROR(status);
  return fs.SyncDir(ParentDir(target));
}

Result<size_t> RestoreTensors(FileSystem& fs, CheckpointSource& step, const std::vector<std::string>& globs,
                              const std::string& destination, const ByteProgress& progress) {
  const TensorTable& catalog = step.catalog();
  std::vector<uint32_t> tensors;
  std::vector<SafetensorsEntry> entries;
  std::vector<size_t> entry_of(catalog.tensors.size());
  std::vector<bool> used(globs.size());
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    bool fits = false;
    for (size_t g = 0; g < globs.size(); ++g)
      if (FitsGlob(catalog.tensors[i], globs[g])) fits = used[g] = true;
    if (!fits) continue;
    entry_of[i] = entries.size();
    tensors.push_back(i);
    entries.push_back(
        {DisplayName(catalog.tensors[i]), catalog.tensors[i].dtype, catalog.tensors[i].spec.shape});
  }
  for (size_t g = 0; g < globs.size(); ++g)
    if (!used[g])
      return InvalidArgument("{}: no tensor fits '{}'; cairn inspect lists them", step.directory(), globs[g]);
  if (fs.Stat(destination).ok())
    return AlreadyExists("{} exists and is never overwritten; choose another destination", destination);
  const std::string partial = fmt::format("{}.partial-{}", destination, NewNonce());
  uint64_t done = 0;
  const auto write = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(MakeDirs(fs, ParentDir(destination)));
    CAIRN_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(fs, partial, entries, {}));
    CAIRN_RETURN_IF_ERROR(
        StreamBlocks(step, tensors, BlockBytesFor(kDefaultMaxMemory), [&](const Block& block) {
          done += block.bytes.size();
          if (progress) progress(done);
          return writer->Write(entry_of[block.tensor],
                               block.begin * SizeOf(catalog.tensors[block.tensor].dtype), block.bytes);
        }));
    CAIRN_RETURN_IF_ERROR(writer->Finish({}));
    CAIRN_RETURN_IF_ERROR(writer->Prove(fs, [](uint64_t) {}).status());
    CAIRN_RETURN_IF_ERROR(fs.Rename(partial, destination));
    return fs.SyncDir(ParentDir(destination));
  };
  if (const Status status = write(); !status.ok()) {
    if (fs.Stat(partial).ok()) (void)fs.RemoveFile(partial);
    return status;
  }
  return tensors.size();
}

}  // namespace cairn
