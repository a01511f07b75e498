#include "ckpt/run/tokenizer_files.h"

#include <algorithm>
#include <filesystem>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/glob.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxTokenizerFileBytes = 256 << 20;  // the largest tokenizer.json are some 40 MB

// What makes a tokenizer, in any of transformers' forms.
constexpr const char* kTokenizerFiles[] = {"tokenizer*.json", "tokenizer.model",   "vocab.json",
                                           "merges.txt",      "added_tokens.json", "special_tokens_map.json",
                                           "chat_template*"};
// The directory that a model's own files lie in: of a snapshot in a Hugging Face cache
// (MODEL/snapshots/REVISION, whose files are links into MODEL/blobs) the model's.
std::string OwnPlace(const std::string& directory) {
  const std::filesystem::path place = CanonicalPath(directory);
  return place.parent_path().filename() == "snapshots" ? place.parent_path().parent_path() : place;
}

}  // namespace

Result<FileCopies> TokenizerFiles(FileSystem& fs, const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  FileCopies files;
  for (const std::string& name : names) {
    const auto matches = [&](const char* glob) { return FitsGlob(name, glob); };
    if (!std::ranges::any_of(kTokenizerFiles, matches)) continue;
    const std::string path = JoinPath(directory, name);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
    if (info.is_directory()) continue;
    if (info.kind != FileKind::kFile) return InvalidArgument("{} is not a regular file; move it away", path);
    if (!CanonicalPath(path).starts_with(JoinPath(OwnPlace(directory), "")))
      return InvalidArgument(
          "{} leads out of the model's directory, to {}; put a copy there if it is to be published", path,
          CanonicalPath(path));
    files[name] = {&fs, path};
  }
  if (files.empty()) return NotFound("{}: no tokenizer files there", directory);
  return files;
}

Result<FileCopies> TokenizerOf(FileSystem& fs, const std::string& checkpoint) {
  const std::filesystem::path path = checkpoint;
  std::vector<std::string> places = {checkpoint};
  if (ParseStepDirName(path.filename().string()))
    places.push_back((path.parent_path() / kRunTokenizerDir).string());
  for (const std::string& place : places) {
    if (const auto info = fs.Stat(place); !info.ok() || !info->is_directory()) continue;
    Result<FileCopies> found = TokenizerFiles(fs, place);
    if (found.ok() || found.status().kind() != StatusKind::kNotFound) return found;
  }
  return FileCopies{};
}

Result<std::vector<BesideFile>> ReadCopies(const FileCopies& files) {
  std::vector<BesideFile> read;
  for (const auto& [name, from] : files) {
    CAIRN_ASSIGN_OR_RETURN(std::string bytes, ReadSmallFile(*from.fs, from.path, kMaxTokenizerFileBytes));
    read.push_back({name, std::move(bytes)});
  }
  return read;
}

Status WriteBeside(FileSystem& fs, const std::string& directory, const std::vector<BesideFile>& files,
                   StepSeal& seal) {
  if (files.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(seal.manifest));
  for (const BesideFile& file : files) {
    const std::string path = JoinPath(directory, file.name);
    CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, path));
    CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, path, file.bytes));
    manifest.files.push_back({file.name, file.bytes.size(), DigestOf(file.bytes)});
  }
  seal.manifest = EncodeManifest(manifest);
  return OkStatus();
}

Status CopyBeside(FileSystem& fs, const std::string& directory, const FileCopies& files, StepSeal& seal) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<BesideFile> read, ReadCopies(files));
  return WriteBeside(fs, directory, read, seal);
}

}  // namespace cairn
