// Names that a person gives to steps of a run: RUN/tags, one file that is replaced as a whole. FORMAT.md,
// "Tags".
//
// A tag belongs to the step's content, by the digest of its manifest, not to its number: a training that goes
// back may save the number again. Retention and the archive keep tagged steps.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

inline constexpr std::string_view kTagsName = "tags";  // in a run directory

struct StepTag {
  std::string name;
  int64_t step = 0;
  std::string manifest;  // digest of its manifest, 32 hex digits
  bool operator==(const StepTag&) const = default;
};

// Letters, digits, ".", "_" and "-", at most 64; the first is a letter, so no number is a tag.
bool IsTagName(std::string_view name);

// By name; none if the run has no such file. Errors: Corrupt, NotSupported (version), those of reading.
Result<std::vector<StepTag>> ReadTags(FileSystem& fs, const std::string& run_dir);
// The names among `tags` of the content with this manifest digest.
std::vector<std::string> TagsOf(const std::vector<StepTag>& tags, std::string_view manifest);

// The directory of the step that the tag names, also of one that was saved again since then. Errors: NotFound
// if the run has no such tag, naming those that it has, or if that step is gone.
Result<std::string> StepOfTag(FileSystem& fs, const std::string& run_dir, const std::string& name);
// The same without reading the tags again. Empty if the step is gone.
std::string PlaceOfTag(FileSystem& fs, const std::string& run_dir, const StepTag& tag);

// OK if the step has no tag, and so may be removed. Errors: InvalidArgument naming the tag; those of
// ReadTags() and of reading its manifest.
Status CheckUntagged(FileSystem& fs, const std::string& step_dir);

// Gives the step in `step_dir` of the run a tag, durably. Errors: AlreadyExists if another step has it;
// InvalidArgument for another name; those of reading its manifest and of the DeletionLock.
Status AddTag(FileSystem& fs, const std::string& step_dir, const std::string& name, bool dry_run = false);
// Errors: NotFound.
Status RemoveTag(FileSystem& fs, const std::string& run_dir, const std::string& name, bool dry_run = false);

}  // namespace cairn
