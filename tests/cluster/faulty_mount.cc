// faulty_mount DIRECTORY MOUNT_POINT [OPTION...]: a second view of a directory, as a network file system
// shows it to a node.
//
// Names and attributes stay as they were for this many seconds. As with NFS, opening a file and listing a
// directory ask again; but a listing does not tell the kernel that a name is there that it remembers as
// missing. The file of --faults says what goes wrong. It is read whenever it changes; its lines
// are
//   CALL[,CALL...] ERROR [COUNT [EVERY]]  every EVERYth such call fails, COUNT times (without it: always);
//   CALL
//                                         is a name that Check() and Do() below are given, or `change` for
//                                         all that change something, or `any`
//   hang                                  every call waits until the file no longer says so
//   short                                 reads and writes of more than 8 KiB move half
//   full BYTES                            ENOSPC after this many bytes in all
#define FUSE_USE_VERSION 35
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Options {
  std::string directory, mount_point, faults;
  double stale_seconds = 0;
  bool local_locks = false, no_rename_flags = false, no_direct = false;
} options;

int ErrorNamed(const std::string& name) {
  for (int error = 1; error < 200; ++error)
    if (const char* found = ::strerrorname_np(error); found && name == found) return error;
  fprintf(stderr, "faulty_mount: %s: no error is called %s\n", options.faults.c_str(), name.c_str());
  return EIO;
}

struct Rule {
  std::string calls;  // ",open,write,"
  int error;
  long left = -1, every = 1, seen = 0;
};

class Faults {
 public:
  // The error with which this call fails, or 0.
  int Of(std::string_view call, bool changes) {
    for (; Hangs(); ::usleep(20'000))
      if (fuse_interrupted() != 0) return EINTR;
    const std::lock_guard lock(mutex_);
    Refresh();
    for (Rule& rule : rules_) {
      const auto names = [&](std::string_view name) {
        return rule.calls.find("," + std::string(name) + ",") != std::string::npos;
      };
      if (!names(call) && !names("any") && !(changes && names("change"))) continue;
      if (rule.left == 0 || ++rule.seen % rule.every != 0) continue;
      if (rule.left > 0) --rule.left;
      return rule.error;
    }
    return 0;
  }

  bool Hangs() {
    const std::lock_guard lock(mutex_);
    Refresh();
    return hangs_;
  }

  bool IsShort() {
    const std::lock_guard lock(mutex_);
    Refresh();
    return short_;
  }

  // True if `bytes` more are too many.
  bool IsFull(size_t bytes) {
    const std::lock_guard lock(mutex_);
    Refresh();
    return room_ >= 0 && written_ + static_cast<long>(bytes) > room_;
  }

  void Wrote(size_t bytes) {
    const std::lock_guard lock(mutex_);
    written_ += static_cast<long>(bytes);
  }

 private:
  void Refresh() {
    struct stat now = {};
    if (options.faults.empty() || ::stat(options.faults.c_str(), &now) != 0) return;
    if (now.st_ino == read_.st_ino && now.st_mtim.tv_sec == read_.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == read_.st_mtim.tv_nsec)
      return;
    read_ = now;
    rules_.clear();
    short_ = hangs_ = false;
    room_ = -1;
    std::ifstream file(options.faults);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string first, second;
      words >> first >> second;
      if (first == "short") {
        short_ = true;
      } else if (first == "hang") {
        hangs_ = true;
      } else if (first == "full") {
        room_ = written_ + std::stol(second);
      } else if (!first.empty()) {
        Rule rule{.calls = "," + first + ",", .error = ErrorNamed(second)};
        if (words >> rule.left) words >> rule.every;
        rule.every = std::max(rule.every, 1L);
        rules_.push_back(rule);
      }
    }
  }

  std::mutex mutex_;
  struct stat read_ = {};
  std::vector<Rule> rules_;
  bool short_ = false, hangs_ = false;
  long room_ = -1, written_ = 0;
} faults;

enum Changes : bool { kReads = false, kChanges = true };

int Check(std::string_view call, Changes changes = kChanges) { return -faults.Of(call, changes); }
int Result(int result) { return result == 0 ? 0 : -errno; }

// Runs `operation`, unless `call` should fail.
template <typename Operation>
int Do(std::string_view call, Changes changes, Operation operation) {
  const int failed = Check(call, changes);
  return failed != 0 ? failed : Result(operation());
}

std::string At(const char* path) { return options.directory + path; }
int Descriptor(const fuse_file_info* file) { return static_cast<int>(file->fh); }

int GetAttr(const char* path, struct stat* st, fuse_file_info* file) {
  return Do("stat", kReads,
            [&] { return file ? ::fstat(Descriptor(file), st) : ::lstat(At(path).c_str(), st); });
}

int Open(const char* path, fuse_file_info* file, std::string_view call, mode_t mode) {
  const bool writes = (file->flags & O_ACCMODE) != O_RDONLY || (file->flags & (O_CREAT | O_TRUNC)) != 0;
  if (const int failed = Check(call, Changes{writes})) return failed;
  if (options.no_direct && (file->flags & O_DIRECT) != 0) return -EINVAL;
  // The buffers of FUSE are not aligned as O_DIRECT asks.
  const int fd = ::open(At(path).c_str(), file->flags & ~(O_DIRECT | O_NOFOLLOW), mode);
  if (fd < 0) return -errno;
  file->fh = static_cast<uint64_t>(fd);
  file->direct_io = faults.IsShort();  // else the kernel takes a short read for the end of the file
  if (options.stale_seconds > 0) fuse_invalidate_path(fuse_get_context()->fuse, path);
  return 0;
}

struct Listing {
  std::vector<std::string> names;
};

int OpenDir(const char* path, fuse_file_info* file) {
  return Do("list", kReads, [&] {
    const auto close = [](DIR* dir) { ::closedir(dir); };
    const std::unique_ptr<DIR, decltype(close)> dir(::opendir(At(path).c_str()));
    if (!dir) return -1;
    auto listing = std::make_unique<Listing>();
    while (const dirent* entry = ::readdir(dir.get())) listing->names.emplace_back(entry->d_name);
    file->fh = reinterpret_cast<uint64_t>(listing.release());
    return 0;
  });
}

// Only names: if it were given attributes, too, the kernel would forget that it had found a name missing.
// That of bindfs and of most network file systems by FUSE remembers it.
int ReadDir(const char*, void* buffer, fuse_fill_dir_t fill, off_t offset, fuse_file_info* file,
            fuse_readdir_flags) {
  const auto& names = reinterpret_cast<Listing*>(file->fh)->names;
  for (size_t i = static_cast<size_t>(offset); i < names.size(); ++i)
    if (fill(buffer, names[i].c_str(), nullptr, static_cast<off_t>(i + 1), fuse_fill_dir_flags{}) != 0) break;
  return 0;
}

int Read(const char*, char* buffer, size_t size, off_t offset, fuse_file_info* file) {
  if (const int failed = Check("read", kReads)) return failed;
  if (faults.IsShort() && size > 8192) size /= 2;
  const ssize_t n = ::pread(Descriptor(file), buffer, size, offset);
  return n < 0 ? -errno : static_cast<int>(n);
}

int Write(const char*, const char* buffer, size_t size, off_t offset, fuse_file_info* file) {
  if (const int failed = Check("write")) return failed;
  if (faults.IsFull(size)) return -ENOSPC;
  if (faults.IsShort() && size > 8192) size /= 2;
  const ssize_t n = ::pwrite(Descriptor(file), buffer, size, offset);
  if (n < 0) return -errno;
  faults.Wrote(static_cast<size_t>(n));
  return static_cast<int>(n);
}

// A wait ends if the program that waits is killed.
int Flock(const char*, fuse_file_info* file, int operation) {
  if (const int failed = Check("lock", kReads)) return failed;
  while (::flock(Descriptor(file), operation | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || (operation & LOCK_NB) != 0) return -errno;
    if (fuse_interrupted() != 0) return -EINTR;
    ::usleep(10'000);
  }
  return 0;
}

// POSIX locks, which SQLite takes: here those of an open file.
int Lock(const char*, fuse_file_info* file, int command, struct flock* lock) {
  if (const int failed = Check("lock", kReads)) return failed;
  lock->l_pid = 0;
  if (command == F_GETLK) return Result(::fcntl(Descriptor(file), F_OFD_GETLK, lock));
  while (::fcntl(Descriptor(file), F_OFD_SETLK, lock) != 0) {
    if ((errno != EAGAIN && errno != EACCES) || command == F_SETLK) return -errno;
    if (fuse_interrupted() != 0) return -EINTR;
    ::usleep(10'000);
  }
  return 0;
}

int Rename(const char* from, const char* to, unsigned flags) {
  if (flags != 0 && options.no_rename_flags) return -EINVAL;
  return Do("rename", kChanges,
            [&] { return ::renameat2(AT_FDCWD, At(from).c_str(), AT_FDCWD, At(to).c_str(), flags); });
}

int ReadLink(const char* path, char* buffer, size_t size) {
  const ssize_t n = ::readlink(At(path).c_str(), buffer, size - 1);
  if (n < 0) return -errno;
  buffer[n] = 0;
  return 0;
}

void* Init(fuse_conn_info* connection, fuse_config* config) {
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_READDIRPLUS);
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_ASYNC_DIO);  // as programs of libfuse 2 are mounted
  config->use_ino = 1;
  config->intr = 1;
  config->attr_timeout = config->entry_timeout = config->negative_timeout = options.stale_seconds;
  return nullptr;
}

fuse_operations Operations() {
  fuse_operations ops = {};
  ops.init = Init;
  ops.getattr = GetAttr;
  ops.open = [](const char* path, fuse_file_info* file) { return Open(path, file, "open", 0); };
  ops.create = [](const char* path, mode_t mode, fuse_file_info* file) {
    return Open(path, file, "create", mode);
  };
  ops.opendir = OpenDir;
  ops.readdir = ReadDir;
  ops.releasedir = [](const char*, fuse_file_info* file) {
    delete reinterpret_cast<Listing*>(file->fh);
    return 0;
  };
  ops.read = Read;
  ops.write = Write;
  ops.rename = Rename;
  ops.readlink = ReadLink;
  if (!options.local_locks) {
    ops.flock = Flock;
    ops.lock = Lock;
  }
  // close() of the program: late errors come here, too.
  ops.flush = [](const char*, fuse_file_info*) { return Check("close"); };
  ops.release = [](const char*, fuse_file_info* file) { return Result(::close(Descriptor(file))); };
  ops.fsync = [](const char*, int, fuse_file_info* file) {
    return Do("fsync", kChanges, [&] { return ::fsync(Descriptor(file)); });
  };
  ops.fsyncdir = [](const char*, int, fuse_file_info*) { return Check("fsync"); };
  ops.truncate = [](const char* path, off_t length, fuse_file_info*) {
    return Do("truncate", kChanges, [&] { return ::truncate(At(path).c_str(), length); });
  };
  ops.fallocate = [](const char*, int mode, off_t offset, off_t length, fuse_file_info* file) {
    return Do("allocate", kChanges, [&] { return ::fallocate(Descriptor(file), mode, offset, length); });
  };
  ops.mkdir = [](const char* path, mode_t mode) {
    return Do("mkdir", kChanges, [&] { return ::mkdir(At(path).c_str(), mode); });
  };
  ops.mknod = [](const char* path, mode_t mode, dev_t device) {
    return Do("create", kChanges, [&] { return ::mknod(At(path).c_str(), mode, device); });
  };
  ops.unlink = [](const char* path) {
    return Do("remove", kChanges, [&] { return ::unlink(At(path).c_str()); });
  };
  ops.rmdir = [](const char* path) {
    return Do("remove", kChanges, [&] { return ::rmdir(At(path).c_str()); });
  };
  ops.symlink = [](const char* target, const char* path) {
    return Do("link", kChanges, [&] { return ::symlink(target, At(path).c_str()); });
  };
  ops.link = [](const char* from, const char* to) {
    return Do("link", kChanges, [&] { return ::link(At(from).c_str(), At(to).c_str()); });
  };
  ops.chmod = [](const char* path, mode_t mode, fuse_file_info*) {
    return Do("chmod", kChanges, [&] { return ::chmod(At(path).c_str(), mode); });
  };
  ops.chown = [](const char* path, uid_t user, gid_t group, fuse_file_info*) {
    return Do("chown", kChanges, [&] { return ::lchown(At(path).c_str(), user, group); });
  };
  ops.utimens = [](const char* path, const timespec* times, fuse_file_info*) {
    return Do("utime", kChanges,
              [&] { return ::utimensat(AT_FDCWD, At(path).c_str(), times, AT_SYMLINK_NOFOLLOW); });
  };
  ops.statfs = [](const char* path, struct statvfs* st) {
    return Do("statfs", kReads, [&] { return ::statvfs(At(path).c_str(), st); });
  };
  return ops;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Mounts a directory again, as a network file system shows it to a node");
  app.add_option("DIRECTORY", options.directory)->required()->check(CLI::ExistingDirectory);
  app.add_option("MOUNT_POINT", options.mount_point)->required()->check(CLI::ExistingDirectory);
  app.add_option("--stale", options.stale_seconds, "Seconds for which names and attributes stay");
  app.add_flag("--local-locks", options.local_locks, "Locks hold within this mount only");
  app.add_flag("--no-rename-flags", options.no_rename_flags, "No RENAME_EXCHANGE and RENAME_NOREPLACE");
  app.add_flag("--no-direct", options.no_direct, "Refuse O_DIRECT");
  app.add_option("--faults", options.faults, "File that says what goes wrong");
  CLI11_PARSE(app, argc, argv);
  ::signal(SIGUSR1, [](int) {});  // libfuse sends it to the thread whose call was interrupted
  std::string program = argv[0], foreground = "-f", flag = "-o";
  std::string mount_options = "allow_other,default_permissions,max_threads=64,fsname=" + options.directory;
  std::vector<char*> arguments{program.data(), foreground.data(), flag.data(), mount_options.data(),
                               options.mount_point.data()};
  const fuse_operations ops = Operations();
  return fuse_main(static_cast<int>(arguments.size()), arguments.data(), &ops, nullptr);
}
