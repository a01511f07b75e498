// The file's optimizers are found first, by the keys of torch's state dicts, then what lies beside the
// weights: entries at the top, or beside an optimizer, that AreOfTraining tells (dict_entries.h), and values
// without tensors. Tensors of these are the training's; other values of these are left behind by name. All
// other tensors are weights, or an optimizer's, and what is not understood among them is an error.

#include "convert/formats/torch/torch.h"

#include <algorithm>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "convert/foreign/dict_entries.h"
#include "convert/foreign/stored_builder.h"
#include "convert/stream/decode_values.h"
#include "convert/torch/tensor_walk.h"
#include "convert/torch/torch_file.h"

namespace cairn {
namespace {

using Paths = std::vector<std::string>;

// A number of values; more than any file needs that does not share its parts endlessly.
constexpr uint64_t kMostVisits = 16 << 20;

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

// Paths of torch.optim's state dicts, which their keys tell, down to three levels below the top: "optimizer",
// "optimizer_states.0" of Lightning, or "state.optimizers.AdamW" of Composer.
void FindOptimizers(const PyValue& value, const std::string& path, int depth, std::set<std::string>& found) {
  const bool dict = value.is(PyKind::kDict);
  if (dict && FindKind(value, "state", PyKind::kDict) && FindKind(value, "param_groups", PyKind::kList)) {
    found.insert(path);
    return;
  }
  if (depth == 0 || !(dict || value.is(PyKind::kList))) return;
  const std::string below = path.empty() ? "" : path + ".";
  for (size_t i = dict ? 1 : 0; i < value.items.size(); i += dict ? 2 : 1)
    FindOptimizers(*value.items[i], below + (dict ? KeyText(*value.items[i - 1]) : std::to_string(i)),
                   depth - 1, found);
}

// Megatron's arguments and DeepSpeed's sizes say of how many ranks a file is one. Errors: NotSupported if it
// is one of several, unless `options` allow "slice".
Status CheckNotOneRank(const PyValue& root, ReaderOptions& options) {
  constexpr const char* kSizes[] = {"tensor_model_parallel_size", "pipeline_model_parallel_size",
                                    "expert_model_parallel_size", "mp_world_size"};
  const PyValue* args = Find(root, "args");
  for (const char* name : kSizes) {
    const auto ranks = AsInt(Find(args && args->is(PyKind::kObject) ? *args : root, name));
    if (ranks.value_or(1) > 1 && !IsAllowed(options, "slice"))
      return NotSupported(
          "it is the file of one rank, and its {} is {}; give the directory that has the files of all; "
          "--allow slice takes this one",
          name, *ranks);
  }
  return OkStatus();
}

bool IsEmpty(const PyValue& value) {
  const bool plain = value.is(PyKind::kList) || value.is(PyKind::kTuple) || value.is(PyKind::kDict);
  return value.is(PyKind::kNone) || (plain && value.items.empty());
}

// What lies beside the weights.
struct Beside {
  const Paths& optimizers;
  Paths training;  // tensors below these are the training's
  Paths left;      // values without a tensor
  uint64_t visits = kMostVisits;
};

bool HoldsAny(const std::string& path, const Paths& optimizers) {
  return std::ranges::any_of(optimizers,
                             [&](const std::string& o) { return o == path || o.starts_with(path + "."); });
}

// `depth`: levels below this one that are looked at.
void FindBeside(const PyValue& holder, const std::string& below, int depth, Beside& beside) {
  if (!holder.is(PyKind::kDict)) return;
  const auto is_weight = [](const PyValue* item) {
    return item->is(PyKind::kTensor) && item->tensor->shape.rank() > 0;
  };
  const bool flat = std::ranges::any_of(holder.items, is_weight);
  const bool has_model = below.empty() || HoldsAny(below.substr(0, below.size() - 1), beside.optimizers);
  std::vector<DictEntry> entries;
  std::vector<const PyValue*> items;
  for (size_t i = 1; i < holder.items.size(); i += 2) {
    const PyValue& item = *holder.items[i];
    const std::string key = KeyText(*holder.items[i - 1]);
    const HeldElements held = ElementsIn(item, beside.visits);
    if (held.rank < 0 && !(flat && held.others)) {  // no tensor
      if (!IsEmpty(item)) beside.left.push_back(below + key);
      beside.training.push_back(below + key);
      continue;
    }
    const bool unknown = !has_model || held.rank < 0 || HoldsAny(below + key, beside.optimizers);
    entries.push_back({key, item.is(PyKind::kTensor), unknown ? kMaxRank : held.rank, held.parameter});
    items.push_back(&item);
  }
  const std::vector<bool> of_training = AreOfTraining(entries);
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string path = below + entries[i].key;
    if (of_training[i])
      beside.training.push_back(path);
    else if (!flat && depth > 0)
      FindBeside(*items[i], path + ".", depth - 1, beside);
  }
}

class TorchReader {
 public:
  TorchReader(const TorchFile& file, StoredBuilder& builder, ReaderOptions& options)
      : file_(file), builder_(builder), account_(builder.account), options_(options) {
    std::set<std::string> optimizers;
    FindOptimizers(file.root(), "", 3, optimizers);
    optimizers_.assign(optimizers.begin(), optimizers.end());
    if (ElementsIn(file.root(), beside_.visits).rank > 0) FindBeside(file.root(), "", 1, beside_);
    without_ = !optimizers_.empty() && IsAllowed(options, "optimizer");
    if (without_) manifest_.history.push_back("the optimizer's state was left out (--allow optimizer)");
  }

  Result<Manifest> Read() {
    CAIRN_RETURN_IF_ERROR(ForEachTensor(
        file_.root(), [&](const std::string& name, const TensorRef& tensor) { return Add(name, tensor); },
        [&](const std::string& name, const PyValue& value, Status why) {
          return PassOver(name, value, std::move(why));
        }));
    for (const std::string_view key : ProgressNames())
      if (const auto value = AsInt(Find(file_.root(), key))) manifest_.state[std::string(key)] = *value;
    for (const std::string& name : beside_.left)
      if (!manifest_.state.contains(name)) account_.OmitValue(name);
    manifest_.step = IntField(manifest_.state, "iteration");
    if (!optimizers_.empty() && !without_) manifest_.state["optimizers"] = optimizers_;
    return std::move(manifest_);
  }

 private:
  bool IsTraining(const std::string& name) const {
    return std::ranges::find(beside_.training, name) != beside_.training.end() ||
           IsBelowAny(name, beside_.training);
  }

  Status Add(const std::string& name, const TensorRef& tensor) {
    const bool optimizer = IsBelowAny(name, optimizers_), training = !optimizer && IsTraining(name);
    if ((optimizer && without_) || IsAllowed(options_, name)) {
      if (!optimizer || !without_) manifest_.history.push_back("left out " + name);
      account_.Omit(Fate::kAllowed, file_, tensor, name);
      return OkStatus();
    }
    if (!tensor.type->dtype && training) {
      account_.OmitValue(name);
      account_.Omit(Fate::kTrainingState, file_, tensor, name);
      return OkStatus();
    }
    if (!tensor.type->dtype && options_.skip_types) {
      manifest_.state[kTypesNotHeld][name] = tensor.type->name;
      account_.Omit(Fate::kAllowed, file_, tensor, name);
      return OkStatus();
    }
    const Result<StoredArray> array = builder_.ArrayIn(file_, tensor, name);
    if (array.status().kind() == StatusKind::kNotSupported)
      return NotSupported("{}; --allow '{}' leaves it out", array.status().message(), name);
    if (!array.ok()) return array.status();
    const size_t known = builder_.catalog.tensors.size();
    CAIRN_ASSIGN_OR_RETURN(const uint32_t entry,
                           builder_.Tensor({.name = name, .shape = tensor.shape},
                                           training ? Role::kTraining : Role::kWeight, array->dtype));
    if (entry != known)
      return NotSupported("two tensors have the name {}; --allow '{}' leaves them out", name, name);
    builder_.AddPart(entry, Box::Whole(tensor.shape), *array);
    if (optimizer) account_.CountAsOptimizer(name);
    return OkStatus();
  }

  // A value whose elements are in no tensor: beside the weights it is left behind, among them it must be
  // allowed.
  Status PassOver(const std::string& name, const PyValue& value, Status why) {
    const bool optimizer = without_ && IsBelowAny(name, optimizers_), training = IsTraining(name);
    if (!optimizer && !training) {
      if (!IsAllowed(options_, name))
        return {why.kind(), fmt::format("{}; --allow '{}' leaves it out", why.message(), name)};
      manifest_.history.push_back("left out " + name);
    }
    if (std::ranges::find(beside_.left, name) == beside_.left.end() && !IsBelowAny(name, beside_.left))
      account_.OmitValue(name);
    account_.OmitBelow(!optimizer && training ? Fate::kTrainingState : Fate::kAllowed, file_, value, name);
    return OkStatus();
  }

  const TorchFile& file_;
  StoredBuilder& builder_;
  Account& account_;
  ReaderOptions& options_;
  Paths optimizers_;
  Beside beside_{optimizers_};
  bool without_ = false;  // the optimizers' state
  Manifest manifest_;
};

// Random states are bytes, and what a scaler or a schedule keeps are numbers.
bool HoldsWeights(const TorchFile& file) {
  std::set<std::string> optimizers;
  FindOptimizers(file.root(), "", 3, optimizers);
  const Paths paths(optimizers.begin(), optimizers.end());
  bool found = false;
  const auto look = [&](const std::string& name, const TensorRef& tensor) {
    const bool computes = !tensor.type->dtype || IsFloat(*tensor.type->dtype);
    found |= computes && tensor.shape.rank() > 0 && !IsBelowAny(name, paths);
    return OkStatus();
  };
  uint64_t visits = kMostVisits;
  const auto pass_over = [&](const std::string&, const PyValue& value, const Status&) {
    found |= ElementsIn(value, visits).rank > 0;  // those of a sparse one; NumPy's arrays are not
    return OkStatus();
  };
  return !ForEachTensor(file.root(), look, pass_over).ok() || found;
}

}  // namespace

bool MatchesTorch(FileSystem& fs, const std::string& path) { return TorchFile::Matches(fs, path); }

Result<std::unique_ptr<ForeignSource>> OpenTorch(FileSystem& fs, const std::string& path,
                                                 ReaderOptions& options) {
  const auto [directory, name] = SplitPath(path);
  StoredBuilder builder;
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder.OpenFile(fs, directory, name));
  builder.AddFile(name);
  CAIRN_RETURN_IF_ERROR(CheckNotOneRank(file.root(), options).WithContext(path));
  Result<Manifest> manifest = TorchReader(file, builder, options).Read();
  if (!manifest.ok()) return manifest.status().WithContext(path);
  if (builder.catalog.tensors.empty())
    return NotSupported("{}: it does not contain tensors; cairn inspect {} shows what it holds", path, path);
  return builder.Open(fs, directory, *std::move(manifest));
}

bool IsWithoutWeights(FileSystem& fs, const std::string& path) {
  const Result<TorchFile> file = TorchFile::Open(fs, ParentDir(path), std::string(LastName(path)));
  return file.ok() && !HoldsWeights(*file);
}

}  // namespace cairn
