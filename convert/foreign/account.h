// Accounts for every byte of a source's files, so that nothing is lost silently.
//
// A reader lists the storages of the files that it reads (a record of a .pt, a tensor of a safetensors file,
// a chunk of a DCP item). The bytes of the catalog's arrays are found from the catalog; a reader has to
// declare all others, by name and with a reason. Close() compares the two: a byte that is in neither is an
// error, so a reader cannot forget a tensor silently.
#pragma once

#include <compare>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "convert/foreign/open_options.h"
#include "convert/foreign/stored_source.h"
#include "convert/stream/tensor_stream.h"
#include "convert/torch/torch_file.h"

namespace cairn {

// Why the bytes of a storage are in no tensor of the result.
enum class Fate : uint8_t {
  kTrainingState,  // random states, schedules, counters: read as plain values, or left out by name
  kBuffer,         // computed again from the model's sizes: inv_freq, _extra_state
  kAllowed,        // --allow
  kReplica,        // another copy of a tensor of the result
  kPadding,        // rows of a vocabulary that no token has
  kAlignment,      // of flat buffers
  kUnreferenced,   // no tensor has them; another part of their storage is a tensor
  kOptimizer,      // in tensors that differ from weights only by name
};
// The key in a manifest's state of what Account::Close() returned when the source was read.
inline constexpr const char* kAccountKey = "source_account";
inline constexpr size_t kMaxAccountNames = 256;  // of values in no tensor, in the manifest

std::string_view Name(Fate fate);  // "training_state", "buffer", ...

// The list of optimizer_left_, in what Account::Close() returned.
inline constexpr const char* kOptimizerLeft = "optimizer_left";

// True if a part of a path is called as an optimizer is: "chained_0.optimizer.param_state", "critic_optim.m".
bool IsOptimizerName(std::string_view path);

// True for an opaque value that may be an optimizer's state in a form that is not read.
bool MayHoldMoments(const TensorEntry& tensor);

class Account {
 public:
  // A storage of `file` (relative to the catalog's directory): `bytes` from byte `begin` on.
  void AddStorage(const std::string& file, std::string name, uint64_t begin, uint64_t bytes);
  // All storages of a file of torch, or of an item in one; counted once. Bytes that none of its tensors names
  // are kUnreferenced, unless no tensor names any byte of the storage.
  void AddFile(const TorchFile& file);
  // The records of those storages that have a CRC-32, in files of this list.
  std::vector<SummedRecord> RecordsIn(const std::vector<std::string>& files) const;

  void Omit(Fate fate, const std::string& file, uint64_t begin, uint64_t bytes, std::string name);
  // The stretches of an array, which no part reads.
  void Omit(Fate fate, const StoredCatalog& catalog, const StoredArray& array);
  void Omit(Fate fate, const TorchFile& file, const TensorRef& tensor, const std::string& name);
  // All tensors and bare storages below `value`, in any container.
  void OmitBelow(Fate fate, const TorchFile& file, const PyValue& value, const std::string& name);
  // A value that is in no tensor and that no part of the result states. Its bytes, if any, are declared like
  // others.
  void OmitValue(std::string name) { left_behind_.insert(std::move(name)); }
  // The tensors of this name are an optimizer's.
  void CountAsOptimizer(const std::string& tensor) { optimizer_.insert(tensor); }
  // An array of the catalog that is compared with the one that is read.
  void Replica(uint32_t array) { replicas_.insert(array); }

  // Entries of the dict at a file's top that `taken` does not name: random states and schedules are
  // kTrainingState, those that `options` allow are kAllowed. Errors: NotSupported naming one with elements
  // that is neither.
  Status OmitRest(const TorchFile& file, const std::set<std::string>& taken, ReaderOptions& options);

  // Every byte of every storage is in a tensor of the catalog or declared, every element of an array that is
  // read is in a tensor or is padding. Gives {"storages", "bytes", "parts": {NAME: {"count", "bytes"}},
  // "in_no_tensor": [names of values that were read or left out], "left_behind"?: [names], "optimizer_left"?:
  // [names of tensors]}; the parts' bytes sum to "bytes". Errors: Corrupt naming file, storage and bytes.
  Result<nlohmann::json> Close(const StoredCatalog& catalog) const;

 private:
  struct Storage {
    uint64_t begin, end;
    std::string name;
  };
  // A role or a fate. If claims overlap, the first one counts: a role before the fates.
  struct Label {
    int order = -1;
    std::string_view name;
    auto operator<=>(const Label&) const = default;
  };
  struct Claim {
    uint64_t begin, end;
    Label label;
  };
  struct Ledger {  // of a file
    std::vector<Storage> storages;
    std::vector<Claim> claims;
  };
  using Totals = std::map<Label, std::pair<uint64_t, uint64_t>>;  // of a label: count and bytes

  static Label LabelOf(Fate fate);
  Label LabelOf(const TensorEntry& tensor) const;
  Status CheckArrays(const StoredCatalog& catalog, Totals& totals, std::vector<Label>& labels) const;
  static Status Settle(const std::string& file, Ledger ledger, Totals& totals);

  std::map<std::string, Ledger> ledgers_;
  std::map<std::string, std::vector<ZipRecord>, std::less<>> records_;  // of each file
  std::set<std::pair<Fate, std::string>> names_;                        // of values that were left out
  std::set<std::string> left_behind_;
  // Tensors that are left without a permission though an optimizer has them: its reader does not know their
  // form. Numbers are not counted.
  std::set<std::string> optimizer_left_;
  std::set<uint32_t> replicas_;
  std::set<std::string> optimizer_;                    // names of tensors
  std::set<std::pair<std::string, uint64_t>> listed_;  // storages: file and first byte
};

// The account of a source that was read from another system's files; null of a native step, whose state may
// still have that of the files it was once made of.
nlohmann::json AccountOf(const CheckpointSource& source);

// The paths of the optimizers in a file of torch.save, whose tensors have the names of weights; empty: all of
// the file.
std::vector<std::string> OptimizerPaths(const Manifest& manifest);
bool IsBelowAny(const std::string& name, const std::vector<std::string>& paths);

// What a result lacks of its source, beside masters and moments: values that the reader left behind, the
// training's own tensors and objects, and the optimizers of a file of torch.save.
std::vector<std::string> ValuesLeftBehind(const CheckpointSource& source,
                                          const std::vector<WrittenTensor>& written);

}  // namespace cairn
