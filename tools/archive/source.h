// What an archive takes its copies from: native steps, other systems' checkpoints, or any directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/canonical_path.h"
#include "ckpt/step_reader.h"
#include "tools/archive/record.h"

namespace cairn {

struct ArchiveSource {
  std::string path;
  bool native = true;  // a committed step; otherwise a tree of files, taken as they are
};

// What the arguments mean: a step itself, all committed steps of a run directory; of other systems the
// directories that carry a step's number (global_step2, iter_0000100, checkpoint-500), or the directory as it
// is. Errors: NotFound naming the argument.
Result<std::vector<ArchiveSource>> ExpandSources(FileSystem& fs, const std::vector<std::string>& arguments);

// The record that `step` would get, without the size of the tar and the digests of the files.
ArchiveRecord DescribeSource(const StepReader& step);

// A file of a tree, with what tells whether it changed.
struct TreeFile {
  std::string name;  // path below the tree
  FileInfo info;
};
// All files below `directory`, sorted; links are followed. Errors: NotFound where there is none;
// NotSupported for what is neither file nor directory, and for more files or levels than fit.
Result<std::vector<TreeFile>> ListTree(FileSystem& fs, const std::string& directory);
// The record that a tree would get. Its identity is that of names, sizes and times.
ArchiveRecord DescribeTree(const std::string& directory, const std::vector<TreeFile>& files);
// The same identity again. Errors: Corrupt where it is another.
Status CheckTreeUnchanged(FileSystem& fs, const std::string& directory, std::string_view digest);

// The step's number in another system's directory name: "global_step2", "iter_0000100", "checkpoint-500".
std::optional<int64_t> ForeignStepOf(std::string_view directory_name);

// Errors: Corrupt where the manifest in `step_dir` is another than the one of this digest (hex).
Status CheckManifestUnchanged(FileSystem& fs, const std::string& step_dir, std::string_view digest);

}  // namespace cairn
