// A file system that stops working: after `budget` operations that change or read it, everything fails, as
// for a process that was killed or a disk that went away. What was done before stays done.
#pragma once

#include <atomic>

#include "ckpt/file_system.h"

namespace cairn {

class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& base) : base_(base) {}

  // Operations from now on until failure; negative: never.
  void SetBudget(int64_t budget) { budget_ = budget < 0 ? INT64_MAX : budget; }
  int64_t operations() const { return operations_; }
  void SetError(StatusKind kind) { kind_ = kind; }

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override {
    CAIRN_RETURN_IF_ERROR(Spend("open", path));
    CAIRN_ASSIGN_OR_RETURN(auto file, base_.OpenForRead(path, direct));
    return std::unique_ptr<File>(std::make_unique<FaultyFile>(*this, std::move(file)));
  }
  Result<std::unique_ptr<File>> Create(const std::string& path, Direct direct) override {
    CAIRN_RETURN_IF_ERROR(Spend("create", path));
    CAIRN_ASSIGN_OR_RETURN(auto file, base_.Create(path, direct));
    return std::unique_ptr<File>(std::make_unique<FaultyFile>(*this, std::move(file)));
  }
  Result<FileInfo> Stat(const std::string& path) override { return base_.Stat(path); }
  Result<std::vector<std::string>> List(const std::string& path) override { return base_.List(path); }
  Status MakeDir(const std::string& path) override {
    return Do("mkdir", path, [&] { return base_.MakeDir(path); });
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return Do("rename", to, [&] { return base_.Rename(from, to); });
  }
  Status Exchange(const std::string& a, const std::string& b) override {
    return Do("exchange", b, [&] { return base_.Exchange(a, b); });
  }
  Status RemoveFile(const std::string& path) override {
    return Do("remove", path, [&] { return base_.RemoveFile(path); });
  }
  Status RemoveDir(const std::string& path) override {
    return Do("remove", path, [&] { return base_.RemoveDir(path); });
  }
  Status SyncDir(const std::string& path) override {
    return Do("fsync", path, [&] { return base_.SyncDir(path); });
  }
  Result<uint64_t> FreeBytes(const std::string& path) override { return base_.FreeBytes(path); }

 private:
  class FaultyFile final : public File {
   public:
    FaultyFile(FaultyFileSystem& fs, std::unique_ptr<File> base) : fs_(fs), base_(std::move(base)) {}
    Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
      const Status spent = fs_.Spend("write", path());
      // The operation that fails may have done half its work.
      if (!spent.ok() && fs_.operations_ == fs_.budget_ + 1 && bytes.size() >= 2 * kPageBytes)
        (void)base_->WriteAt(offset, bytes.first(kPageBytes));
      return spent.ok() ? base_->WriteAt(offset, bytes) : spent;
    }
    Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
      return fs_.Do("read", path(), [&] { return base_->ReadAt(offset, bytes); });
    }
    Status Allocate(uint64_t bytes) override {
      return fs_.Do("fallocate", path(), [&] { return base_->Allocate(bytes); });
    }
    Status Sync() override {
      return fs_.Do("fsync", path(), [&] { return base_->Sync(); });
    }
    Status Close() override {
      return fs_.Do("close", path(), [&] { return base_->Close(); });
    }
    bool direct() const override { return base_->direct(); }
    const std::string& path() const override { return base_->path(); }

   private:
    FaultyFileSystem& fs_;
    std::unique_ptr<File> base_;
  };

  Status Spend(const char* what, const std::string& path) {
    if (operations_++ < budget_) return OkStatus();
    return {kind_, fmt::format("{} {}: injected fault", what, path)};
  }
  template <typename Operation>
  Status Do(const char* what, const std::string& path, Operation operation) {
    CAIRN_RETURN_IF_ERROR(Spend(what, path));
    return operation();
  }

  FileSystem& base_;
  std::atomic<int64_t> operations_ = 0;
  std::atomic<int64_t> budget_ = INT64_MAX;
  StatusKind kind_ = StatusKind::kIoError;
};

}  // namespace cairn
