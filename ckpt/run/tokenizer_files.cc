#include "ckpt/run/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/glob.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxTokenizerFileBytes = 256 << 20;  // the largest tokenizer.json are some 40 MB

// Tokenizers and processors, in any of transformers' forms and in Mistral's.
constexpr const char* kTokenizerFiles[] = {"tokenizer*.json", "tokenizer.model*",
                                           "tekken.json",     "vocab.json",
                                           "vocab.txt",       "merges.txt",
                                           "spiece.model",    "sentencepiece*.model",
                                           "spm*.model",      "bpe.codes",
                                           "*.tiktoken",      "added_tokens.json",
                                           "normalizer.json", "special_tokens_map.json",
                                           "chat_template*",  "*processor_config.json"};
constexpr std::string_view kTemplates = "additional_chat_templates";  // a directory
constexpr const char* kTemplateFile = "*.jinja";
constexpr const char* kLicences[] = {"LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "USE_POLICY*"};
constexpr const char* kCode[] = {"*.py"};
constexpr const char* kNamesCode[] = {"config.json", "tokenizer_config.json", "processor_config.json"};

// The directory that must contain a model's files. For a snapshot in a Hugging Face cache
// (MODEL/snapshots/REVISION, whose files are links into MODEL/blobs) that is MODEL.
std::string OwnPlace(const std::string& directory) {
  const std::filesystem::path place = CanonicalPath(directory);
  return place.parent_path().filename() == "snapshots" ? place.parent_path().parent_path() : place;
}

bool FitsOneOf(const std::string& name, std::span<const char* const> globs) {
  return std::ranges::any_of(globs, [&](const char* glob) { return FitsGlob(name, glob); });
}

// Adds the files of `directory`/`below` that fit one of `globs`.
Status AddFiles(FileSystem& fs, const std::string& directory, const std::string& below,
                std::span<const char* const> globs, FileCopies& files) {
  const std::string place = below.empty() ? directory : JoinPath(directory, below);
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(place));
  for (const std::string& name : names) {
    if (!FitsOneOf(name, globs)) continue;
    const std::string path = JoinPath(place, name);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
    if (info.is_directory()) continue;
    if (info.kind != FileKind::kFile) return InvalidArgument("{} is not a regular file; move it away", path);
    if (!CanonicalPath(path).starts_with(JoinPath(OwnPlace(directory), "")))
      return InvalidArgument(
          "{} leads out of the model's directory, to {}; if it is to be published, replace it by a copy",
          path, CanonicalPath(path));
    files[below.empty() ? name : JoinPath(below, name)] = {&fs, path};
  }
  return OkStatus();
}

// A step has the code only if the checkpoint that it was made from named it.
bool NamesCode(FileSystem& fs, const std::string& directory) {
  return fs.Stat(JoinPath(directory, kManifestName)).ok() ||
         std::ranges::any_of(kNamesCode, [&](const char* name) {
           const auto text = ReadSmallFile(fs, JoinPath(directory, name), kMaxTokenizerFileBytes);
           return text.ok() && text->find("\"auto_map\"") != std::string::npos;
         });
}

std::string NameInStep(std::string name) {
  std::ranges::replace(name, '/', '@');
  return name;
}

}  // namespace

Result<FileCopies> TokenizerFiles(FileSystem& fs, const std::string& directory) {
  FileCopies files, flat;
  CAIRN_RETURN_IF_ERROR(AddFiles(fs, directory, "", kTokenizerFiles, files));
  const std::string templates(kTemplates);
  if (const auto info = fs.Stat(JoinPath(directory, templates)); info.ok() && info->is_directory())
    CAIRN_RETURN_IF_ERROR(AddFiles(fs, directory, templates, std::array{kTemplateFile}, files));
  const std::string in_step = NameInStep(JoinPath(templates, kTemplateFile));
  CAIRN_RETURN_IF_ERROR(AddFiles(fs, directory, "", std::array{in_step.c_str()}, flat));
  for (const auto& [name, from] : flat) files[JoinPath(templates, name.substr(templates.size() + 1))] = from;
  if (files.empty()) return NotFound("{}: it has no tokenizer files", directory);
  return files;
}

bool HasTokenizer(const FileCopies& files) {
  return std::ranges::any_of(files, [](const auto& file) { return FitsOneOf(file.first, kTokenizerFiles); });
}

Result<FileCopies> LicenceAndCode(FileSystem& fs, const std::string& directory) {
  FileCopies files;
  CAIRN_RETURN_IF_ERROR(AddFiles(fs, directory, "", kLicences, files));
  if (NamesCode(fs, directory)) CAIRN_RETURN_IF_ERROR(AddFiles(fs, directory, "", kCode, files));
  return files;
}

Result<FileCopies> FilesLike(FileSystem& fs, const std::string& directory,
                             std::span<const char* const> globs) {
  FileCopies files;
  CAIRN_RETURN_IF_ERROR(AddFiles(fs, directory, "", globs, files));
  return files;
}

Result<FileCopies> TokenizerOf(FileSystem& fs, const std::string& checkpoint) {
  const std::filesystem::path path = checkpoint;
  FileCopies files;
  if (const auto info = fs.Stat(checkpoint); info.ok() && info->is_directory()) {
    CAIRN_ASSIGN_OR_RETURN(files, LicenceAndCode(fs, checkpoint));
  }
  std::vector<std::string> places = {checkpoint};
  if (ParseStepDirName(path.filename().string()))
    places.push_back((path.parent_path() / kRunTokenizerDir).string());
  for (const std::string& place : places) {
    if (const auto info = fs.Stat(place); !info.ok() || !info->is_directory()) continue;
    Result<FileCopies> found = TokenizerFiles(fs, place);
    if (!found.ok() && found.status().kind() != StatusKind::kNotFound) return found;
    if (!found.ok()) continue;
    files.merge(*found);
    break;
  }
  return files;
}

std::vector<std::string> NamesInStep(const FileCopies& files) {
  std::vector<std::string> names;
  for (const auto& [name, copy] : files) names.push_back(NameInStep(name));
  return names;
}

Result<std::vector<BesideFile>> ReadCopies(const FileCopies& files) {
  std::vector<BesideFile> read;
  for (const auto& [name, from] : files) {
    CAIRN_ASSIGN_OR_RETURN(std::string bytes, ReadSmallFile(*from.fs, from.path, kMaxTokenizerFileBytes));
    read.push_back({NameInStep(name), std::move(bytes)});
  }
  return read;
}

Status WriteBeside(FileSystem& fs, const std::string& directory, std::span<const BesideFile> files,
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

}  // namespace cairn
