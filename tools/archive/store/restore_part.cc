#include "tools/archive/store/restore_part.h"

#include <algorithm>
#include <set>

#include "ckpt/model/tensor_glob.h"
#include "ckpt/run/tokenizer_files.h"
#include "ckpt/step/partial_dir.h"
#include "convert/formats/hugging_face/safetensors_writer.h"
#include "convert/stream/block_stream.h"
#include "convert/verbs/strip.h"

namespace cairn {

Status RestoreWeights(FileSystem& fs, FileSystem& from, CheckpointSource& step,
                      const std::string& destination) {
  const std::filesystem::path target = DestinationPath(destination);
  if (fs.Stat(target).ok())
    return AlreadyExists("{} exists and is never overwritten; choose another destination", target.string());
  StripOptions options{.dtype = std::nullopt, .format = StripFormat::kNative};
  options.command = "cairn archive restore --weights-only";
  CAIRN_ASSIGN_OR_RETURN(options.writer.beside, TokenizerOf(from, step.directory()));
  {
    const PartialDir run =  // around the step, and gone again without it
        PartialDir::Adopt(fs, fmt::format("{}.partial-{}", target.string(), NewNonce()));
    CAIRN_ASSIGN_OR_RETURN(const StripResult stripped, Strip(fs, step, run.path(), options));
    CAIRN_RETURN_IF_ERROR(fs.Rename(stripped.path, target));
  }
  return fs.SyncDir(ParentDir(target));
}

std::vector<std::string> FilesOfTensors(const StepCatalog& catalog, const std::vector<std::string>& globs) {
  std::set<std::string> files;
  const auto add = [&](uint32_t tensor) {
    const auto [begin, end] = catalog.PiecesOfTensor(tensor);
    for (size_t i = begin; i < end; ++i) files.insert(catalog.files[catalog.pieces[i].file]);
  };
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    if (std::ranges::none_of(globs, [&](const auto& glob) { return FitsGlob(catalog.tensors[i], glob); }))
      continue;
    add(i);
    if (const auto weight = catalog.Find(catalog.tensors[i].spec.name, Role::kWeight); weight.ok())
      add(*weight);
  }
  return {files.begin(), files.end()};
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
    WriteRing ring(fs);
    CAIRN_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(fs, ring, partial, entries, {}));
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
