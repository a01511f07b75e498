// Trees of files: listing, identity, and comparison with a record.
//
// A tree is known by its canonical path and its content: the name, kind and permission bits of every entry,
// the SHA-256 of every file, and the target of every link. Sizes and times are never taken as content. Owners
// and times are stored and restored, but are not part of the identity.
//
// A link is stored as a link and not followed. A link that leads out of the tree (its target is absolute,
// above the tree's own directory, or elsewhere) is an error unless the caller says how to store it: a
// restored tree must not silently lack files that it seemed to contain. A file with several names (hard
// links) is stored once for each name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "tools/archive/store/store.h"
#include "tools/archive/tar/record.h"

namespace cairn {

// How to store links that lead out of the tree.
enum class Links {
  kRefuse,
  kKeep,    // as links, without their targets
  kFollow,  // their targets in their place
};

// An entry of a tree, with the facts that show whether it changed.
struct TreeFile {
  std::string name;    // path below the tree
  FileInfo info = {};  // of the name; of what a followed link leads to. Only a file has bytes.
  EntryKind kind = EntryKind::kFile;
  std::string target = {};  // of a link
  bool leaves = false;      // a link that leads out of the tree
  EntryFacts facts = {};

  // The same entry, untouched.
  bool operator==(const TreeFile& other) const;
};

// All entries below `directory`, sorted by name. Errors: NotFound if it is empty; NotSupported for special
// files, for links that leave the tree under kRefuse, for directories that contain themselves, and for more
// files or longer paths than an archive supports.
Result<std::vector<TreeFile>> ListTree(FileSystem& fs, const std::string& directory,
                                       Links links = Links::kRefuse);

// The record of a tree before its files are read: names, places and facts. Its digest then covers only names
// and sizes, and identifies nothing.
ArchiveRecord DescribeTree(FileSystem& fs, const std::string& directory, const std::vector<TreeFile>& files,
                           Links links);
// The record that the tree would get, without its place in a tar; every file is read. A file is not read
// again if this process read one of the same path, inode, size and times (nanoseconds).
Result<ArchiveRecord> DescribeTree(FileSystem& fs, const std::string& directory, Links links);

// The digest of a tree's path and content: 32 hex digits. Requires the files' SHA-256.
std::string TreeDigest(const ArchiveRecord& record);

// Errors: Corrupt naming the first entry in which the content of `tree` differs from `stored`.
Status CompareTrees(const ArchiveRecord& tree, const ArchiveRecord& stored);

// Reads the whole tree and compares it with the record: no entry is missing or added, every file has its
// SHA-256, and nothing changed while it was read. Errors: Corrupt naming the entry.
Status CheckTreeIs(FileSystem& fs, const std::string& directory, const ArchiveRecord& record);

// The member of a store that holds this tree as it is now, compared by SHA-256; nullopt if there is none. The
// tree is read only if the names and sizes of a member of the same path agree.
Result<std::optional<ArchiveRecord>> FindTree(FileSystem& fs, const std::vector<ArchiveMember>& members,
                                              const std::string& directory, Links links);

}  // namespace cairn
