// The mark of a directory that Cairn may remove again: one that is being written, or one that is being
// deleted.
//
// Its maker writes the mark before it makes the directory, as a file beside it: NAME.cairn-mark, with the
// name of the directory and of the files that will be in it. The mark is outside of the directory: no kill
// leaves a directory without one, and nothing that was published contains one. Once the directory exists, and
// before anything is in it, the mark is bound to it: it gets the inode and birth time.
//
// A file that anybody can write, copy or unpack gives no right. RemoveMarked() is the only door, and
// docs/deletion.md has its rules: the mark, the directory and the caller have one owner; the mark is bound to
// this directory; nobody writes it; beside a name that is final, it is the mark of a run directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/directory_facts.h"

namespace cairn {

inline constexpr std::string_view kMarkSuffix = ".cairn-mark";

// "out.partial-", which a nonce (nonce.h) follows: a directory that gets the name "out" once it is
// whole.
std::string PartialPrefix(std::string_view path);

// What its maker writes into a marked directory.
struct MarkedContents {
  bool step = false;               // files of a step: IsStepFileName (layout.h)
  bool run = false;                // a run directory, which others may use, too: they may keep it
  std::vector<std::string> files;  // paths of others below it; "a/" is a directory
};

// "runs/gpt" and "runs/gpt/": "runs/gpt.cairn-mark".
std::string MarkPath(std::string_view directory);

// Durable when it returns. `made`: the directory, if it exists already under another name. Errors:
// AlreadyExists if the mark exists; those of the disk.
Status WriteMark(FileSystem& fs, const std::string& directory, const MarkedContents& contents,
                 const DirectoryFacts& made = {});
// Binds the mark to the directory that its maker has just made, durably. Errors: Corrupt if it is not an
// unbound mark of this name, or not the directory's; those of the disk.
Status BindMark(FileSystem& fs, const std::string& directory);

// Makes a marked directory that several processes write; each of them may call it. Only the one that gives
// `files` knows all of them. The directory is never without a mark.
Status MakeMarkedDir(FileSystem& fs, const std::string& directory, const MarkedContents& contents);
// The directory stays for good: removes only its mark.
void RemoveMark(FileSystem& fs, const std::string& directory);

// The locks that the caller holds, and that need not be asked for.
enum class LocksHeld {
  kNone,
  kRun,  // that of the run directory in which the directory lies
  kAll,  // it made the directory, and nobody else writes it
};

// Removes what the mark names from the directory, what is marked inside it, the directory if it is empty
// then, and the mark. No link is followed. OK if both are gone already, or if another process writes it.
// Errors: InvalidArgument if something stays: the mark gives no right, or files of others are in it; those of
// the disk.
Status RemoveMarked(FileSystem& fs, const std::string& directory, LocksHeld held);
// The same, called by its maker, who knows the contents: no other clean-up can remove the mark before.
Status RemoveMarked(FileSystem& fs, const std::string& directory, const MarkedContents& contents);

}  // namespace cairn
