#include "convert/formats/hugging_face/hugging_face.h"

#include <algorithm>

#include "ckpt/base/glob.h"
#include "ckpt/step/partial_dir.h"
#include "convert/formats/hugging_face/weight_files.h"

namespace cairn {
namespace {

constexpr const char* kPickles[] = {kPickleFile, kPickleIndex};
constexpr const char* kSafetensors[] = {kSafetensorsFile, kSafetensorsIndex};
constexpr const char* kSuffixes[] = {".safetensors", ".bin"};

bool HasAny(FileSystem& fs, const std::string& directory, std::span<const char* const> names) {
  for (const char* name : names)
    if (fs.Stat(JoinPath(directory, name)).ok()) return true;
  return false;
}

}  // namespace

bool IsHuggingFace(FileSystem& fs, const std::string& path) {
  const Result<FileInfo> info = fs.Stat(path);
  if (!info.ok()) return false;
  if (info->is_directory())
    return fs.Stat(JoinPath(path, "config.json")).ok() &&
           (HasAny(fs, path, kSafetensors) || HasAny(fs, path, kPickles));
  return std::ranges::any_of(kSuffixes, [&](const char* suffix) { return path.ends_with(suffix); }) &&
         fs.Stat(JoinPath(ParentDir(path), "config.json")).ok();
}

Result<std::unique_ptr<ForeignSource>> OpenHuggingFace(FileSystem& fs, const std::string& path,
                                                       ReaderOptions& options) {
  const bool pickled =
      path.ends_with(".bin") || (!HasAny(fs, path, kSafetensors) && HasAny(fs, path, kPickles));
  CAIRN_ASSIGN_OR_RETURN(WeightFiles files,
                         pickled ? ReadPickledFiles(fs, path) : ReadSafetensorsFiles(fs, path));
  auto source = OpenStoredModel(fs, files.directory, std::move(files.names), files.tensors,
                                std::move(files.account), options);
  if (source.ok() || !FitsGlob(path, "*-[0-9]*-of-[0-9]*.*")) return source;
  return Status(source.status().kind(),
                fmt::format("{}; {} is one of several files: give their directory, or --from {} for it alone",
                            source.status().message(), path, pickled ? "torch" : "safetensors"));
}

}  // namespace cairn
