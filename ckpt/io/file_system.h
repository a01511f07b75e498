// The operating system as ckpt sees it: every open, write, sync and rename of a checkpoint goes through here.
//
// One seam, so that errno becomes a Status in one place and faults can be injected in tests. HDF5 itself
// never opens a file: files are laid out in memory (h5_image.h) and written through this interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/io/file_lock.h"
#include "ckpt/io/io_queue.h"

namespace cairn {

inline constexpr uint64_t kPageBytes = 4096;  // alignment of O_DIRECT transfers and of data in our files

inline uint64_t PageDown(uint64_t bytes) { return bytes / kPageBytes * kPageBytes; }
inline uint64_t PageUp(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

enum class Direct {
  kAuto,  // O_DIRECT if the file system allows it, else buffered
  kOn,    // O_DIRECT or an error
  kOff,
};

// An open file. Safe from several threads on disjoint ranges. Errors: IoError or NoSpace with the path and
// offset.
class File {
 public:
  virtual ~File() = default;
  // Whole or an error. With direct(), address, offset and size are multiples of kPageBytes.
  virtual Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Whole, or Corrupt if the file ends before.
  virtual Status ReadAt(uint64_t offset, std::span<std::byte> bytes) = 0;
  // Makes the file exactly this long, with zeros in the parts that were not written, and reserves the space
  // if the file system can, so that a full disk is reported before the first byte is written.
  virtual Status Allocate(uint64_t bytes) = 0;
  // A failed Sync is final: the kernel may have dropped the pages, so it must never be tried again.
  virtual Status Sync() = 0;
  virtual Status Close() = 0;  // the destructor is the last resort and drops the error
  virtual bool direct() const = 0;
  virtual const std::string& path() const = 0;
  // For transfers past this interface (io_queue.h); -1: there is none.
  virtual int descriptor() const { return -1; }
};

// How many of the `bytes` transferred count: after a short O_DIRECT transfer, whole pages.
inline size_t WholeTransfer(const File& file, size_t bytes) {
  return file.direct() ? PageDown(bytes) : bytes;
}

enum class FileKind {
  kFile,
  kDirectory,
  kLink,   // symbolic; only LinkStat sees one
  kOther,  // FIFO, socket, device
};

struct FileInfo {
  FileKind kind = FileKind::kFile;
  uint64_t bytes = 0;
  int64_t modified_unix_seconds = 0;
  int64_t accessed_unix_seconds = 0;
  // Real files have these; zeros for others.
  int64_t modified_unix_nanoseconds = 0;
  int64_t changed_unix_nanoseconds = 0;  // of the inode: moves with every write, rename and chmod
  uint32_t mode = 0;                     // permissions, and set-user-ID, set-group-ID, sticky: 07777
  uint32_t user = 0, group = 0;
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t allocated_bytes = 0;  // on the disk; far below `bytes` for a file that was moved to tape

  bool is_directory() const { return kind == FileKind::kDirectory; }
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Whether other processes can reach the same files: then locks, marks, owners and mounts count.
  virtual bool HasOtherProcesses() const { return false; }
  // A regular file; NotSupported for anything else, so that a FIFO in a checkpoint's place does not block.
  virtual Result<std::unique_ptr<File>> OpenForRead(const std::string& path,
                                                    Direct direct = Direct::kOff) = 0;
  // A new file. AlreadyExists if one exists.
  virtual Result<std::unique_ptr<File>> Create(const std::string& path, Direct direct = Direct::kOff) = 0;
  // An existing file, to continue it.
  virtual Result<std::unique_ptr<File>> OpenForWrite(const std::string& path, Direct) {
    return NotSupported("{}: this file system cannot write into an existing file", path);
  }
  virtual Result<FileInfo> Stat(const std::string& path) = 0;
  // Describes the name itself: a symbolic link is not followed.
  virtual Result<FileInfo> LinkStat(const std::string& path) { return Stat(path); }
  virtual Result<std::vector<std::string>> List(
      const std::string& directory) = 0;                // names, sorted, without . and ..
  virtual Status MakeDir(const std::string& path) = 0;  // fine if the directory already exists
  virtual Status Rename(const std::string& from,
                        const std::string& to) = 0;  // replaces a file, never a directory
  virtual Status Exchange(const std::string& a, const std::string& b) = 0;  // swaps two names in one step
  // These two give a new name. Errors: AlreadyExists, and nothing has changed. A file system
  // without such a rename looks for the name first.
  virtual Status RenameNew(const std::string& from, const std::string& to);
  virtual Status MakeNewDir(const std::string& path);
  virtual Status RemoveFile(const std::string& path) = 0;
  virtual Status RemoveDir(const std::string& path) = 0;  // empty ones only
  virtual Status SyncDir(const std::string& path) = 0;
  virtual Result<uint64_t> FreeBytes(const std::string& path) = 0;
  // These six mean the name itself: a symbolic link is not followed. Errors: NotSupported where files have
  // no links, modes, owners or times.
  virtual Result<std::string> ReadLink(const std::string& path);
  virtual Status MakeLink(const std::string& target, const std::string& path);  // a new symbolic link
  virtual Status AddName(const std::string& file, const std::string& path);     // a new hard link
  virtual Status SetMode(const std::string& path, uint32_t mode);               // a link has none
  virtual Status SetOwner(const std::string& path, uint32_t user,
                          uint32_t group);  // may clear bits of the mode
  virtual Status SetModified(const std::string& path, int64_t unix_seconds, uint32_t nanoseconds);
  // Opens a file for locks, and locks nothing yet. A link is not followed. Where no other process reaches
  // the files, no file is needed, and everybody gets every lock. Errors: those of open().
  virtual Result<FileLock> OpenLock(const std::string& path,
                                    FileLock::Missing missing = FileLock::Missing::kCreate);
  // For files of this file system.
  virtual std::unique_ptr<IoQueue> NewQueue(const IoQueueOptions& options = {}) {
    return NewThreadQueue(options.depth);
  }

  static FileSystem& Posix();
  // From now on only the calling thread makes and renames files; the others wait for ever if they try. For a
  // thread that cleans up before it ends the process.
  static void LetNoOtherThreadMakeFiles();
};

// "a/b"
std::string JoinPath(std::string_view directory, std::string_view name);
// The directory that contains `path`: "." for a plain name.
std::string ParentDir(const std::string& path);
// Creates `path` and the directories above it that are missing, durably: a step in a directory that a power
// loss takes away again is lost.
Status MakeDirs(FileSystem& fs, const std::string& path);
// Removes a directory and what is in it, files first. Links in it are removed, not followed. Errors:
// NotSupported if `path` itself is a link or not a directory.
Status RemoveTree(FileSystem& fs, const std::string& path);
// Removes a file, for example one that a killed run left. Errors: those of RemoveFile except NotFound.
Status RemoveIfThere(FileSystem& fs, const std::string& path);
// The whole of a small file. Errors: NotSupported if it exceeds `max_bytes`.
Result<std::string> ReadSmallFile(FileSystem& fs, const std::string& path, uint64_t max_bytes);
// Creates `path` with these bytes, synced; a failure removes it again.
Status WriteSmallFile(FileSystem& fs, const std::string& path, std::string_view bytes);

}  // namespace cairn
