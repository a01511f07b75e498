// A file system around another one that passes every call through one function: to count calls, to fail
// them, or to skip them.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "ckpt/io/file_system.h"

namespace cairn {

struct FsCall {
  enum class Kind {
    kOpenForRead,
    kCreate,
    kStat,
    kList,
    kMakeDir,
    kRename,
    kExchange,
    kRemoveFile,
    kRemoveDir,
    kSyncDir,
    kFreeBytes,
    kSetFacts,  // mode, owner, time
    kWrite,
    kRead,
    kAllocate,
    kSync,
    kClose
  };
  Kind kind;
  const std::string& path;
  const std::string* to = nullptr;        // rename, exchange
  File* file = nullptr;                   // the wrapped one, of calls on a file
  uint64_t offset = 0;                    // write
  std::span<const std::byte> bytes = {};  // write

  // True for calls that change something, or make it durable.
  bool changes() const {
    return kind != Kind::kOpenForRead && kind != Kind::kStat && kind != Kind::kList &&
           kind != Kind::kFreeBytes && kind != Kind::kRead;
  }
};

class WrappedFileSystem : public FileSystem {
 public:
  explicit WrappedFileSystem(FileSystem& base) : base_(base) {}

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct = Direct::kOff) override {
    return Open({FsCall::Kind::kOpenForRead, path}, [&] { return base_.OpenForRead(path, direct); });
  }
  Result<std::unique_ptr<File>> Create(const std::string& path, Direct direct = Direct::kOff) override {
    return Open({FsCall::Kind::kCreate, path}, [&] { return base_.Create(path, direct); });
  }
  Result<std::unique_ptr<File>> OpenForWrite(const std::string& path, Direct direct) override {
    return Open({FsCall::Kind::kOpenForRead, path}, [&] { return base_.OpenForWrite(path, direct); });
  }
  Result<FileInfo> Stat(const std::string& path) override {
    return Get<FileInfo>({FsCall::Kind::kStat, path}, [&] { return base_.Stat(path); });
  }
  Result<FileInfo> LinkStat(const std::string& path) override {
    return Get<FileInfo>({FsCall::Kind::kStat, path}, [&] { return base_.LinkStat(path); });
  }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return Get<std::vector<std::string>>({FsCall::Kind::kList, path}, [&] { return base_.List(path); });
  }
  Status MakeDir(const std::string& path) override {
    return Do({FsCall::Kind::kMakeDir, path}, [&] { return base_.MakeDir(path); });
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return Do({FsCall::Kind::kRename, from, &to}, [&] { return base_.Rename(from, to); });
  }
  Status Exchange(const std::string& a, const std::string& b) override {
    return Do({FsCall::Kind::kExchange, a, &b}, [&] { return base_.Exchange(a, b); });
  }
  Status RenameNew(const std::string& from, const std::string& to) override {
    return Do({FsCall::Kind::kRename, from, &to}, [&] { return base_.RenameNew(from, to); });
  }
  Status MakeNewDir(const std::string& path) override {
    return Do({FsCall::Kind::kMakeDir, path}, [&] { return base_.MakeNewDir(path); });
  }
  Status RemoveFile(const std::string& path) override {
    return Do({FsCall::Kind::kRemoveFile, path}, [&] { return base_.RemoveFile(path); });
  }
  Status RemoveDir(const std::string& path) override {
    return Do({FsCall::Kind::kRemoveDir, path}, [&] { return base_.RemoveDir(path); });
  }
  Status SyncDir(const std::string& path) override {
    return Do({FsCall::Kind::kSyncDir, path}, [&] { return base_.SyncDir(path); });
  }
  Result<uint64_t> FreeBytes(const std::string& path) override {
    return Get<uint64_t>({FsCall::Kind::kFreeBytes, path}, [&] { return base_.FreeBytes(path); });
  }
  Result<std::string> ReadLink(const std::string& path) override {
    return Get<std::string>({FsCall::Kind::kStat, path}, [&] { return base_.ReadLink(path); });
  }
  Status MakeLink(const std::string& target, const std::string& path) override {
    return Do({FsCall::Kind::kCreate, path}, [&] { return base_.MakeLink(target, path); });
  }
  Status AddName(const std::string& file, const std::string& path) override {
    return Do({FsCall::Kind::kCreate, path}, [&] { return base_.AddName(file, path); });
  }
  Status SetMode(const std::string& path, uint32_t mode) override {
    return Do({FsCall::Kind::kSetFacts, path}, [&] { return base_.SetMode(path, mode); });
  }
  Status SetOwner(const std::string& path, uint32_t user, uint32_t group) override {
    return Do({FsCall::Kind::kSetFacts, path}, [&] { return base_.SetOwner(path, user, group); });
  }
  Status SetModified(const std::string& path, int64_t seconds, uint32_t nanoseconds) override {
    return Do({FsCall::Kind::kSetFacts, path}, [&] { return base_.SetModified(path, seconds, nanoseconds); });
  }
  // Not counted: a lock does not belong to a checkpoint.
  Result<FileLock> OpenLock(const std::string& path, FileLock::Missing missing) override {
    return base_.OpenLock(path, missing);
  }

 protected:
  // Every call: `run` does it. May be called from several threads.
  virtual Status Do(const FsCall& call, const std::function<Status()>& run) = 0;

 private:
  class WrappedFile final : public File {
   public:
    WrappedFile(WrappedFileSystem& fs, std::unique_ptr<File> base) : fs_(fs), base_(std::move(base)) {}
    Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
      return fs_.Do({FsCall::Kind::kWrite, path(), nullptr, base_.get(), offset, bytes},
                    [&] { return base_->WriteAt(offset, bytes); });
    }
    Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
      return Call(FsCall::Kind::kRead, [&] { return base_->ReadAt(offset, bytes); });
    }
    Status Allocate(uint64_t bytes) override {
      return Call(FsCall::Kind::kAllocate, [&] { return base_->Allocate(bytes); });
    }
    Status Sync() override {
      return Call(FsCall::Kind::kSync, [&] { return base_->Sync(); });
    }
    Status Close() override {
      return Call(FsCall::Kind::kClose, [&] { return base_->Close(); });
    }
    bool direct() const override { return base_->direct(); }
    const std::string& path() const override { return base_->path(); }

   private:
    Status Call(FsCall::Kind kind, const std::function<Status()>& run) {
      return fs_.Do({kind, path(), nullptr, base_.get()}, run);
    }

    WrappedFileSystem& fs_;
    std::unique_ptr<File> base_;
  };

  template <typename T, typename Run>
  Result<T> Get(const FsCall& call, const Run& run) {
    Result<T> result = IoError("not called");
    CAIRN_RETURN_IF_ERROR(Do(call, [&] {
      result = run();
      return result.status();
    }));
    return result;
  }
  template <typename Run>
  Result<std::unique_ptr<File>> Open(const FsCall& call, const Run& run) {
    CAIRN_ASSIGN_OR_RETURN(auto file, Get<std::unique_ptr<File>>(call, run));
    return std::unique_ptr<File>(std::make_unique<WrappedFile>(*this, std::move(file)));
  }

  FileSystem& base_;
};

}  // namespace cairn
