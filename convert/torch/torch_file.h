// A file of torch.save: its object as plain values, and where in the file each tensor's elements are.
//
// Three containers: the zip of torch 1.6 and newer, the stream of older ones, and a bare pickle (.metadata of
// torch.distributed.checkpoint), which has no storages. Nothing in the file is executed, and its storages are
// not read here.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "convert/torch/pickle_machine.h"
#include "convert/torch/zip_container.h"

namespace cairn {

enum class TorchContainer { kZip, kStream, kPickle };

// Where a storage's bytes are.
struct TorchStorage {
  uint64_t file_offset = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;  // of its record; 0: its container has none
};

class TorchFile {
 public:
  using Storages = std::map<std::string, TorchStorage, std::less<>>;  // by key

  // True if the first bytes are those of torch.save; the rest is not checked.
  static bool Matches(FileSystem& fs, const std::string& path);

  // Errors: Corrupt or NotSupported naming the path, the byte and the opcode, global or record.
  static Result<TorchFile> Open(FileSystem& fs, const std::string& directory, const std::string& name);
  // A file within a file; messages give its place.
  static Result<TorchFile> Read(File& file, Stretch where, std::string directory = {}, std::string name = {});

  const std::string& name() const { return name_; }  // below the directory that is read
  std::string path() const { return JoinPath(directory_, name_); }

  const PyValue& root() const { return *root_; }
  // The same file, with `value`, one of its values, for its root.
  TorchFile Below(const PyValue& value) const {
    TorchFile below = *this;
    below.root_ = &value;
    return below;
  }
  TorchContainer container() const { return container_; }
  const std::vector<SuspiciousGlobal>& suspicious() const { return pickle_->suspicious; }
  const Storages& storages() const { return *storages_; }

  // The byte of the file at which element 0 of the tensor's storage lies. Errors: Corrupt if the storage
  // is missing or shorter than the tensor needs.
  Result<uint64_t> Locate(const TensorRef& tensor) const;

 private:
  static Result<TorchFile> ReadUnnamed(File& file, Stretch where);
  static Result<TorchFile> ReadZip(File& file, Stretch where);
  static Result<TorchFile> ReadStream(File& file, Stretch where);
  static Result<TorchFile> ReadPickle(File& file, Stretch where);
  // Errors: Corrupt naming a storage that the pickle names and that is missing or too short.
  static Result<TorchFile> Make(TorchContainer container, std::unique_ptr<Pickle> pickle, Storages storages);

  std::string directory_, name_;
  TorchContainer container_ = TorchContainer::kPickle;
  std::shared_ptr<const Pickle> pickle_;
  const PyValue* root_ = nullptr;
  std::shared_ptr<const Storages> storages_;
};

}  // namespace cairn
