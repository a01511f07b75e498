// The mark of a directory that Cairn may remove again: one that is being written, or one that is being
// deleted.
//
// Its maker writes the mark before it makes the directory, as a file beside it: NAME.cairn-mark, with the
// name of the directory and of the files that will be in it. Cairn removes no directory without its mark, and
// from a marked one only files that the mark names; docs/deletion.md. The mark is outside of the directory:
// no kill leaves a directory without one, and nothing that was published contains one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

inline constexpr std::string_view kMarkSuffix = ".cairn-mark";

// What its maker writes into a marked directory.
struct MarkedContents {
  bool step = false;               // files of a step: IsStepFileName (layout.h)
  bool run = false;                // a run directory, which others may use, too: they may keep it
  std::vector<std::string> files;  // paths of others below it; "a/" is a directory
};

// "runs/gpt" and "runs/gpt/": "runs/gpt.cairn-mark".
std::string MarkPath(std::string_view directory);

// Durable when it returns. Errors: AlreadyExists if the mark exists; those of the disk.
Status WriteMark(FileSystem& fs, const std::string& directory, const MarkedContents& contents);

// The same for an existing directory that several processes write, of which only this one knows all files.
// The directory is never without a mark.
Status ReplaceMark(FileSystem& fs, const std::string& directory, const MarkedContents& contents);
// The directory stays for good: removes only its mark.
void RemoveMark(FileSystem& fs, const std::string& directory);

// Removes what the mark names from the directory, what is marked inside it, the directory if it is empty
// then, and the mark. No link is followed. OK if both are gone already. Errors: InvalidArgument if something
// stays: there is no mark of this directory, it is a link, or it holds files of others; those of the disk.
Status RemoveMarked(FileSystem& fs, const std::string& directory);
// The same, called by its maker, who knows the contents: no other clean-up can remove the mark before.
Status RemoveMarked(FileSystem& fs, const std::string& directory, const MarkedContents& contents);

}  // namespace cairn
