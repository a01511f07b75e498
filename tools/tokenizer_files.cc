#include "tools/tokenizer_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/canonical_path.h"
#include "ckpt/layout.h"
#include "convert/partial_dir.h"
#include "tools/output.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxFileBytes = 256 << 20;  // the largest tokenizer.json are some 40 MB

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
    const auto matches = [&](const char* glob) { return fnmatch(glob, name.c_str(), 0) == 0; };
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

Result<FileCopies> TokenizerOf(FileSystem& fs, const CheckpointSource& source) {
  const std::string& directory = source.directory();
  for (const std::string& place : {directory, JoinPath(ParentDir(directory), kRunTokenizerDir)}) {
    if (place != directory && !ParseStepDirName(std::filesystem::path(directory).filename().string())) break;
    if (const auto info = fs.Stat(place); !info.ok() || !info->is_directory()) continue;
    Result<FileCopies> found = TokenizerFiles(fs, place);
    if (found.ok() || found.status().kind() != StatusKind::kNotFound) return found;
  }
  return FileCopies{};
}

namespace {

// Under another name until all are there.
Status Keep(FileSystem& fs, const CheckpointSource& source, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const FileCopies files, TokenizerOf(fs, source));
  FileSystem& out = FileSystem::Posix();
  const std::string target = JoinPath(run_dir, kRunTokenizerDir);
  if (files.empty() || out.Stat(target).ok()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(PartialDir partial,
                         PartialDir::Make(out, fmt::format("{}.partial-{}", target, NewNonce())));
  for (const auto& [name, from] : files) {
    CAIRN_ASSIGN_OR_RETURN(const std::string bytes, ReadSmallFile(*from.fs, from.path, kMaxFileBytes));
    CAIRN_RETURN_IF_ERROR(WriteSmallFile(out, JoinPath(partial.path(), name), bytes));
  }
  CAIRN_RETURN_IF_ERROR(out.SyncDir(partial.path()));
  CAIRN_RETURN_IF_ERROR(out.Rename(partial.path(), target));
  partial.Keep();
  return out.SyncDir(run_dir);
}

}  // namespace

void KeepTokenizer(FileSystem& fs, const CheckpointSource& source, const std::string& run_dir) {
  if (const Status status = Keep(fs, source, run_dir); !status.ok())
    PrintProblem(fmt::format("note: the tokenizer does not come along: {}", status.message()));
}

}  // namespace cairn
