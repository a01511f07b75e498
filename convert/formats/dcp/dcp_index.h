// The `.metadata` of torch.distributed.checkpoint: which chunk of which tensor lies in which file.
//
// Source: torch.distributed.checkpoint.metadata and .filesystem, written by torch 2.0 to 2.11.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "convert/foreign/stored_builder.h"

namespace cairn {

// Written last, when all ranks have their files.
inline constexpr std::string_view kDcpMetadata = ".metadata";

// An item of a .distcp file: a file of torch.save within it.
struct DcpItem {
  std::string file;  // relative to the directory that is read
  Stretch where;
  std::optional<TorchFile> value = {};  // instead: one of the values of the file (rank_files.h)
};

struct DcpChunk {
  Box box;  // of the tensor
  DcpItem item;
  // Instead of an item: the array, whose extents are of the item's file.
  std::optional<StoredArray> array = {};
  std::vector<std::pair<std::string, StoredArray>> replicas = {};  // of other ranks, and their files
};

struct DcpTensor {
  std::string name;               // fully qualified: the path's parts joined by dots
  std::vector<std::string> path;  // as the planner unflattens it; empty if it did not flatten
  Dims shape;
  std::optional<Dtype> dtype;    // as .metadata has it; nothing if Cairn does not support it
  std::vector<DcpChunk> chunks;  // none of an empty tensor
};

struct DcpBytes {  // anything that is not a tensor
  std::string name;
  std::vector<std::string> path;
  DcpItem item;
};

struct DcpIndex {
  std::vector<DcpTensor> tensors;
  std::vector<DcpBytes> bytes;
  std::optional<TorchFile> metadata = {};  // its other fields
  Account account = {};                    // of files that are read already

  // {name: path} in JSON: texts, and numbers of list items; [name] if the planner did not flatten.
  nlohmann::json PathsOf(const std::set<std::string, std::less<>>& names) const;

  std::vector<std::pair<std::string_view, const DcpItem*>> items() const;  // with their names
};

// Errors: NotFound (an interrupted save has no .metadata), Corrupt and NotSupported naming tensor and file.
Result<DcpIndex> ReadDcpIndex(FileSystem& fs, const std::string& directory);

// --allow optimizer permits that states are lost. If the file of an item of which `is_state` is true is
// missing or too short, all such items are removed, as if they had not been saved.
void DropLostStates(FileSystem& fs, const std::string& directory, ReaderOptions& options,
                    const std::function<bool(const std::string&)>& is_state, DcpIndex& index);

// Checks that the items of a .metadata, if `names` has one, lie in their files, and that the chunks of each
// tensor cover its shape once. `names`: of the files in `directory`.
Status CheckDcpFiles(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names);

// Checks that the chunks of each tensor cover its shape once. Errors: Corrupt naming the tensor.
Status CheckCovered(const DcpIndex& index);

// The items of a directory, one open file at a time.
class DcpItems {
 public:
  // Lists the storages of each item in `account`.
  DcpItems(FileSystem& fs, std::string directory, Account& account)
      : files_(fs, std::move(directory)), account_(account) {}

  // Lists what it opens. Errors: those of TorchFile::Read, naming file and item.
  Result<TorchFile> Open(const std::string& name, const DcpItem& item);
  // The same in two steps.
  Result<TorchFile> Peek(const std::string& name, const DcpItem& item);
  void List(const TorchFile& file, const DcpItem& item);
  // An item that was not listed as an array of its bytes; lists it as one storage.
  StoredArray Whole(const std::string& name, const DcpItem& item, uint32_t file_index);
  // Asks the kernel to fetch the bytes that Open() will need one by one.
  void ReadAhead(const DcpIndex& index);
  // Lists all items of an index that were not opened yet.
  Status ListAll(const DcpIndex& index);
  // Declares an item, or all chunks of a tensor, to the account.
  Status Omit(Fate fate, const std::string& name, const DcpItem& item);
  Status Omit(Fate fate, const DcpTensor& tensor);
  // The chunk's tensor as an array; of the chunk's shape.
  Result<StoredArray> Array(const DcpTensor& tensor, const DcpChunk& chunk, uint32_t file_index);
  // An array of the index, whose extents lie in the file of this number.
  static StoredArray InFile(StoredArray array, uint32_t file_index);
  // The number that a tensor of one element or a plain value is; nothing for others.
  Result<std::optional<double>> Number(const std::string& name, const DcpItem& item);

 private:
  OpenFiles files_;
  Account& account_;
  std::set<std::pair<std::string, uint64_t>> listed_;  // items: file and first byte
};

}  // namespace cairn
