// The real file system without its syncs: for tests that write thousands of small files and crash none of
// them.
#pragma once

#include <memory>
#include <utility>

#include "ckpt/file_system.h"

namespace cairn {

class UnsyncedFileSystem : public FileSystem {
 public:
  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override {
    return real_.OpenForRead(path, direct);
  }
  Result<std::unique_ptr<File>> Create(const std::string& path, Direct) override {
    CAIRN_ASSIGN_OR_RETURN(auto file, real_.Create(path, Direct::kOff));
    return std::unique_ptr<File>(std::make_unique<UnsyncedFile>(std::move(file)));
  }
  Result<FileInfo> Stat(const std::string& path) override { return real_.Stat(path); }
  Result<std::vector<std::string>> List(const std::string& directory) override {
    return real_.List(directory);
  }
  Status MakeDir(const std::string& path) override { return real_.MakeDir(path); }
  Status Rename(const std::string& from, const std::string& to) override { return real_.Rename(from, to); }
  Status Exchange(const std::string& a, const std::string& b) override { return real_.Exchange(a, b); }
  Status RemoveFile(const std::string& path) override { return real_.RemoveFile(path); }
  Status RemoveDir(const std::string& path) override { return real_.RemoveDir(path); }
  Status SyncDir(const std::string&) override { return OkStatus(); }
  Result<uint64_t> FreeBytes(const std::string& path) override { return real_.FreeBytes(path); }

 private:
  class UnsyncedFile final : public File {
   public:
    explicit UnsyncedFile(std::unique_ptr<File> real) : real_(std::move(real)) {}
    Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
      return real_->WriteAt(offset, bytes);
    }
    Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
      return real_->ReadAt(offset, bytes);
    }
    Status Allocate(uint64_t bytes) override { return real_->Allocate(bytes); }
    Status Sync() override { return OkStatus(); }
    Status Close() override { return real_->Close(); }
    bool direct() const override { return false; }
    const std::string& path() const override { return real_->path(); }

   private:
    std::unique_ptr<File> real_;
  };

  FileSystem& real_ = FileSystem::Posix();
};

}  // namespace cairn
