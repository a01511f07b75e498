#include "tools/source/step_tokenizer.h"

#include <algorithm>

#include "convert/formats/hugging_face/block_scaled.h"
#include "convert/formats/hugging_face/weight_files.h"

namespace cairn {

namespace {

// How peft and engines load the weights beside them, which are an adapter's or quantized.
constexpr const char* kOfAdapters[] = {kAdapterConfig};
constexpr const char* kOfQuantized[] = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"};

Status AddLoading(const OpenedSource& opened, FileCopies& files) {
  const CheckpointSource& source = opened.source();
  const std::string directory = source.directory();
  if (const auto info = opened.step.fs().Stat(directory); !info.ok() || !info->is_directory())
    return OkStatus();
  const auto is_adapter = [](const std::string& file) { return file.starts_with("adapter_model."); };
  if (!opened.foreign || std::ranges::any_of(source.catalog().files, is_adapter)) {
    CAIRN_ASSIGN_OR_RETURN(FileCopies found, FilesLike(opened.step.fs(), directory, kOfAdapters));
    files.merge(found);
  }
  if (!CheckReadable(source).ok()) {
    CAIRN_ASSIGN_OR_RETURN(FileCopies found, FilesLike(opened.step.fs(), directory, kOfQuantized));
    files.merge(found);
  }
  return OkStatus();
}

// Only copied files count as read, not a config.json that was searched for code.
FileCopies Copied(const OpenedSource& opened, FileCopies files) {
  for (const auto& [name, from] : files)
    if (opened.log) opened.log->Add(from.path);
  return files;
}

}  // namespace

Result<FileCopies> TokenizerOf(const OpenedSource& opened) {
  FileSystem& fs = opened.step.fs();
  FileCopies files;
  for (const std::string& directory : opened.DirectoriesOfConfig()) {
    CAIRN_ASSIGN_OR_RETURN(FileCopies found, TokenizerOf(fs, directory));
    files.merge(found);
  }
  CAIRN_RETURN_IF_ERROR(AddLoading(opened, files));
  return Copied(opened, std::move(files));
}

Result<FileCopies> LicenceAndCode(const OpenedSource& opened) {
  CAIRN_ASSIGN_OR_RETURN(FileCopies files, LicenceAndCode(opened.step.fs(), opened.source().directory()));
  CAIRN_RETURN_IF_ERROR(AddLoading(opened, files));
  return Copied(opened, std::move(files));
}

}  // namespace cairn
