// Builds a StoredCatalog out of tensors in files of torch.
#pragma once

#include <map>
#include <string>

#include "convert/foreign/account.h"
#include "convert/foreign/replicas.h"
#include "convert/foreign/stored_source.h"
#include "convert/torch/torch_file.h"

namespace cairn {

// A tensor of a file of torch as an array. Errors: NotSupported if its elements are of a type without a
// Dtype, on no device, or so scattered that no two lie together; Corrupt if it leaves its storage.
Result<StoredArray> ArrayOf(const TorchFile& file, const TensorRef& tensor, uint32_t file_index,
                            std::string name);

class StoredBuilder {
 public:
  StoredCatalog catalog;
  Account account;  // of the files that were read

  uint32_t AddFile(const std::string& name);  // once each
  // Opens a file of torch and lists it in the account. Errors: those of TorchFile::Open.
  Result<TorchFile> OpenFile(FileSystem& fs, const std::string& directory, const std::string& name);
  // A tensor of the file as an array. Errors: those of ArrayOf().
  Result<StoredArray> ArrayIn(const TorchFile& file, const TensorRef& tensor, std::string name) {
    return ArrayOf(file, tensor, AddFile(file.name()), std::move(name));
  }
  uint32_t AddArray(StoredArray array);

  // The tensor of this parameter and role, created if it is new. Errors: Corrupt if it has
  // another shape or element type.
  Result<uint32_t> Tensor(const ParameterSpec& spec, Role role, Dtype dtype);

  // `box` of the tensor is all of the array.
  void AddPart(uint32_t tensor, const Box& box, const StoredArray& array);

  // The part of a tensor in an array of one of several ranks. The first array with a box is read, and
  // others are its replicas. `first`: this is the first part of its array.
  void AddSlice(const ArrayPart& part, bool first);

  // An array that must hold the same as the one that is read.
  void AddReplica(uint32_t tensor, uint32_t array, uint32_t read);

  // Sorts tensors by parameter, in order of first appearance, and by role. Settles
  // the account, and opens what was built; replicas that differ are treated as `how` says. The manifest gets
  // a run, made from the arrays and from `about`. To be called once, last. Errors: those of Account::Close,
  // OpenWithReplicas and StoredSource::Make.
  Result<std::unique_ptr<ForeignSource>> Open(FileSystem& fs, const std::string& directory, Manifest manifest,
                                              Replicas how = Replicas::kStrict, std::string_view about = "");

 private:
  void SortByParameter();

  std::map<std::string, uint32_t, std::less<>> files_;
  std::map<std::pair<std::string, Role>, uint32_t, std::less<>> tensors_;
  std::map<std::pair<uint32_t, std::string>, uint32_t> slices_;  // tensor and box: the array that is read
  std::vector<StoredReplica> replicas_;
};

}  // namespace cairn
