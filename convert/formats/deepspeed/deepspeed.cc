// Three readers give the tensors of each model parallel rank: a pipeline's layer files or the module in the
// model states, the optimizer (ZeRO shards, or the model states), and frozen parameters. All are gathered as
// slices of ranks first: which masters have no weight, and whether the embedding is tied, is known only then.
// They are joined last (rank_slices.h). Tensors that are left out are declared to the account, and copies are
// compared. Masters whose place was in doubt or was found by value are proven against their weights.

#include "convert/formats/deepspeed/deepspeed.h"

#include <algorithm>
#include <set>

#include "convert/formats/deepspeed/frozen_parameters.h"
#include "convert/formats/deepspeed/pipeline_layers.h"
#include "convert/formats/deepspeed/rank_slices.h"
#include "convert/formats/deepspeed/unsharded_optimizer.h"
#include "convert/formats/deepspeed/zero_shards.h"
#include "convert/formats/megatron/megatron_model.h"
#include "convert/formats/megatron/megatron_names.h"
#include "convert/formats/megatron/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/formats/training/param_groups.h"
#include "convert/stream/block_stream.h"
#include "convert/stream/master_proof.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

using Numbers = std::vector<std::pair<std::string, const TensorRef*>>;

// Tensors of one number; none if the value is damaged, so that the account reports its bytes as an error.
Numbers NumbersOf(const PyValue& root) {
  Numbers found;
  const Status status = ForEachTensor(root, [&](const std::string& name, const TensorRef& tensor) {
    if (tensor.storage && tensor.shape.rank() == 0) found.emplace_back(name, &tensor);
    return OkStatus();
  });
  if (!status.ok()) found.clear();
  return found;
}

bool AllMegatron(const std::vector<std::pair<std::string, const TensorRef*>>& tensors) {
  return !tensors.empty() && std::ranges::all_of(tensors, [](const auto& tensor) {
    return tensor.first.starts_with("language_model.") &&
           (ParseMegatronName(tensor.first) || IsMegatronBuffer(tensor.first));
  });
}

class DeepSpeedOpener {
 public:
  DeepSpeedOpener(FileSystem& fs, DeepSpeedFiles files, ReaderOptions& options)
      : fs_(fs), files_(std::move(files)), options_(options) {}

  Result<std::unique_ptr<ForeignSource>> Open() {
    CAIRN_RETURN_IF_ERROR(ReadModels());
    CAIRN_RETURN_IF_ERROR(files_.layers.empty() ? ReadModules() : ReadLayers());
    CAIRN_RETURN_IF_ERROR(ReadOptimizers());
    CAIRN_RETURN_IF_ERROR(LeaveNumbers());
    CAIRN_RETURN_IF_ERROR(AddFrozen());
    CAIRN_RETURN_IF_ERROR(CheckNames());
    for (const TorchFile& model : models_) CAIRN_RETURN_IF_ERROR(LeaveRest(model));
    CAIRN_RETURN_IF_ERROR(
        JoinSlices(files_.directory, models_, layers_, std::move(slices_), options_, builder_, manifest_));
    CAIRN_RETURN_IF_ERROR(AddCopies());
    manifest_.state.update(MegatronState(root()));
    if (const auto groups = manifest_.state.find("param_groups"); groups != manifest_.state.end())
      MembersOfArrays(builder_.catalog, groups_).PutInto(*groups);
    manifest_.step = IntField(manifest_.state, "iteration");
    CAIRN_ASSIGN_OR_RETURN(auto source,
                           builder_.Open(fs_, files_.directory, std::move(manifest_), options_.replicas));
    if (!doubts_.empty() || by_value_)
      CAIRN_RETURN_IF_ERROR(ProveMasters(*source, kDefaultMaxMemory)
                                .status()
                                .WithContext(doubts_.empty() ? files_.directory : doubts_[0]));
    return source;
  }

 private:
  Status Fail(const std::string& file, const Status& status) const {
    return status.WithContext(JoinPath(files_.directory, file));
  }
  const PyValue& root() const { return models_[0].root(); }
  // The weights are the masters, in the optimizer's files.
  bool IsZero3() const { return files_.models.empty(); }

  // The model states of all model parallel ranks; with ZeRO-3 those of the first data parallel rank.
  Status ReadModels() {
    std::map<int, std::string> names = files_.models;
    if (names.empty())
      for (const auto& [ranks, name] : files_.zero3_models)
        if (ranks.second == 0) names[ranks.first] = name;
    for (const auto& [rank, name] : names) {
      if (rank != static_cast<int>(models_.size()))
        return NotFound("{}: the model states of rank {} are missing", files_.directory, models_.size());
      CAIRN_ASSIGN_OR_RETURN(TorchFile model, TorchFile::Open(fs_, files_.directory, name));
      models_.push_back(std::move(model));
    }
    if (models_.empty()) return NotFound("{}: the model states are missing", files_.directory);
    CAIRN_RETURN_IF_ERROR(CheckModelCount());
    for (const TorchFile& model : models_) builder_.account.AddFile(model);
    return OkStatus();
  }

  Status CheckModelCount() {
    const auto count = AsInt(Find(root(), "mp_world_size"));
    if (!count) return OkStatus();
    if (*count > static_cast<int64_t>(models_.size()))
      return NotFound("{}: {} says there are {} model parallel ranks, {} are here", files_.directory,
                      models_[0].name(), *count, models_.size());
    for (size_t i = static_cast<size_t>(std::max<int64_t>(*count, 1)); i < models_.size(); ++i)
      manifest_.history.push_back("left over from a larger world, not read: " + models_[i].name());
    models_.resize(std::min(models_.size(), static_cast<size_t>(std::max<int64_t>(*count, 1))));
    return OkStatus();
  }

  // ---- Weights.

  Status ReadLayers() {
    CAIRN_ASSIGN_OR_RETURN(layers_, NameLayers(fs_, files_, models_));
    for (const auto& [key, name] : files_.layers) {
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder_.OpenFile(fs_, files_.directory, name));
      if (!file.root().is(PyKind::kDict)) return Fail(name, Corrupt("it does not hold a state dict"));
      const std::string& prefix = layers_.prefixes[key.first];
      CAIRN_RETURN_IF_ERROR(
          ForEachTensor(file.root(), [&](const std::string& own, const TensorRef& tensor) -> Status {
            const std::string full = prefix + own;
            auto array = ArrayIn(file, tensor, layers_.megatron ? own : full);
            if (!array.ok()) return array.status();
            return Take(full, key.second, Role::kWeight, *std::move(array), name);
          }));
    }
    return OkStatus();
  }

  // Weights in the model states themselves.
  Status ReadModules() {
    layers_.tp = static_cast<int>(models_.size());
    for (int rank = 0; rank < layers_.tp; ++rank) {
      const TorchFile& model = models_[static_cast<size_t>(rank)];
      const PyValue* module = Find(model.root(), "module");
      if (!module || module->is(PyKind::kNone))
        return Fail(model.name(), NotFound("it does not contain a module"));
      Numbers tensors;
      CAIRN_RETURN_IF_ERROR(ForEachTensor(*module, [&](const std::string& key, const TensorRef& tensor) {
        tensors.emplace_back(key, &tensor);
        return OkStatus();
      }));
      if (rank == 0) layers_.megatron = Find(root(), "args") && AllMegatron(tensors);
      const std::set<std::string> placeholders = PlaceholdersOf(model.root());
      for (const auto& [key, tensor] : tensors) {
        if (tensor->shape == Dims{0} && placeholders.contains(key)) continue;
        auto array = ArrayIn(model, *tensor, key);
        if (!array.ok()) return array.status();
        CAIRN_RETURN_IF_ERROR(Take(key, rank, Role::kWeight, *std::move(array), model.name()));
      }
    }
    return OkStatus();
  }

  Result<StoredArray> ArrayIn(const TorchFile& file, const TensorRef& tensor, const std::string& name) {
    auto array = builder_.ArrayIn(file, tensor, name);
    if (!array.ok()) return Fail(file.name(), array.status());
    return array;
  }

  Status Take(const std::string& name, int tp, Role role, StoredArray array, const std::string& file) {
    if (layers_.megatron && IsMegatronBuffer(name)) {
      builder_.account.Leave(Fate::kBuffer, builder_.catalog, array);
      return OkStatus();
    }
    MegatronName place{kBeforeLayers, name};
    if (layers_.megatron) {
      const auto found = ParseMegatronName(name);
      if (!found) return Fail(file, NotSupported("{} has no place in Megatron's GPT", name));
      place = *found;
    }
    slices_.push_back({std::move(place), tp, role, std::move(array)});
    return OkStatus();
  }

  // ---- Masters and moments.

  // If they cannot be read and the user allows it: masters alone, else none.
  Status ReadOptimizers() {
    const bool sharded = !files_.optimizers.empty();
    const Manifest before = manifest_;
    const Status status = sharded ? ReadZeroOptimizers(/*masters_alone=*/false) : ReadUnshardedOptimizers();
    if (status.ok()) return status;
    // The masters of ZeRO-3 are the weights, so damage to them is not the optimizer's alone.
    if (sharded && IsZero3() && status.kind() != StatusKind::kNotSupported) return status;
    ForgetOptimizers(before);
    CAIRN_RETURN_IF_ERROR(LeaveOutOptimizer(options_, manifest_, status));
    if (!sharded) return LeaveUnshardedOptimizers();
    const Manifest without = manifest_;
    const Status masters = ReadZeroOptimizers(/*masters_alone=*/true);
    if (masters.ok() || IsZero3()) return masters;
    ForgetOptimizers(without);
    for (const auto& [ranks, name] : files_.optimizers) {
      const Result<TorchFile> file = builder_.OpenFile(fs_, files_.directory, name);
      if (file.ok()) builder_.account.LeaveBelow(Fate::kAllowed, *file, file->root(), "optimizer");
    }
    return OkStatus();
  }

  // Half an optimizer is useless: if one rank's cannot be read, those of all ranks go. `before`: the manifest
  // without any.
  void ForgetOptimizers(const Manifest& before) {
    manifest_ = before;
    std::erase_if(slices_, [](const RankSlice& slice) { return IsOptimizerState(slice.role); });
    groups_.clear();
    doubts_.clear();
    by_value_ = false;
  }

  Status ReadZeroOptimizers(bool masters_alone) {
    for (size_t rank = 0; rank < models_.size(); ++rank) {
      CAIRN_ASSIGN_OR_RETURN(const std::vector<TorchFile> shards,
                             OpenShards(fs_, files_, static_cast<int>(rank), builder_, manifest_.history));
      const PyValue* shapes = Find(models_[rank].root(), "param_shapes");
      if (!shapes) return Fail(models_[rank].name(), NotSupported("it does not contain param_shapes"));
      const bool round_robin = MegatronState(root()).contains("round_robin_gradients");
      CAIRN_ASSIGN_OR_RETURN(ZeroContents contents,
                             ReadZero(fs_, shards, *shapes, round_robin, masters_alone, builder_));
      AddGroups(contents.groups);
      LeaveSteps(shards);
      if (masters_alone) LeaveMoments(shards);
      for (const StoredArray& array : contents.alignment)
        builder_.account.Leave(Fate::kAlignment, builder_.catalog, array);
      manifest_.topology.zero = contents.stage;
      manifest_.topology.dp = static_cast<int>(shards.size());
      manifest_.state.update(contents.state);
      doubts_.insert(doubts_.end(), contents.doubts.begin(), contents.doubts.end());
      const bool masters = !WeightsAreMasters();
      for (auto& [role, tensor] : contents.tensors)
        if (masters || role != Role::kMaster)
          CAIRN_RETURN_IF_ERROR(TakeZero(static_cast<int>(rank), role, std::move(tensor), shards[0].path()));
        else
          builder_.account.Leave(Fate::kReplica, builder_.catalog, tensor);
    }
    if (!doubts_.empty())
      manifest_.history.push_back(doubts_[0] +
                                  " (round_robin_gradients); the order of param_shapes was taken, "
                                  "and every master rounds to its weight");
    return OkStatus();
  }

  // Masters of fp32 weights are the weights again.
  bool WeightsAreMasters() const {
    bool any = false;
    for (const RankSlice& slice : slices_) {
      if (!slice.is_weight()) continue;
      if (slice.tensor.dtype != Dtype::kF32) return false;
      any = true;
    }
    return any;
  }

  // Names of a pipeline count the layers of the whole model: "3.input_layernorm.weight".
  Status TakeZero(int rank, Role role, StoredArray tensor, const std::string& file) {
    std::string name = tensor.name;
    if (!files_.layers.empty() && layers_.megatron) {
      const size_t dot = name.find('.');
      const bool number =
          dot != std::string::npos && dot > 0 &&
          std::ranges::all_of(name.substr(0, dot), [](char c) { return c >= '0' && c <= '9'; });
      if (number && dot < 9) {
        const auto prefix = layers_.prefixes.find(std::stoi(name.substr(0, dot)));
        if (prefix == layers_.prefixes.end()) return Corrupt("{}: {} belongs to no layer file", file, name);
        name = prefix->second + name.substr(dot + 1);
      } else if (name.starts_with("tied_modules.")) {
        name = name.substr(name.find('.', std::string_view("tied_modules.").size()) + 1);
        // The last stage has the whole embedding, but only the tied weights of it are kept up to date.
        if (rank >= layers_.tp && name != "word_embeddings.weight") {
          builder_.account.Leave(Fate::kReplica, builder_.catalog, tensor);
          return OkStatus();
        }
      }
    }
    return Take(name, rank % layers_.tp, role, std::move(tensor), file);
  }

  void LeaveMoments(const std::vector<TorchFile>& shards) {
    for (const TorchFile& shard : shards)
      for (const char* key : {"base_optimizer_state", "optimizer_state_dict"})
        if (const PyValue* moments = Find(*Find(shard.root(), "optimizer_state_dict"), key))
          builder_.account.LeaveBelow(Fate::kAllowed, shard, *moments, "optimizer");
  }

  // The numbers of updates, which all ranks and groups have.
  void LeaveSteps(const std::vector<TorchFile>& shards) {
    for (const TorchFile& shard : shards)
      for (const auto& [key, tensor] : NumbersOf(shard.root()))
        builder_.account.Leave(Fate::kTrainingState, shard, *tensor, key);
  }
  // States of one number for a whole parameter have no place among Megatron's; masters stay.
  Status LeaveNumbers() {
    const auto number = std::ranges::find_if(slices_, [](const RankSlice& slice) {
      return IsOptimizerState(slice.role) && slice.tensor.shape.rank() == 0;
    });
    if (!layers_.megatron || number == slices_.end()) return OkStatus();
    CAIRN_RETURN_IF_ERROR(
        LeaveOutOptimizer(options_, manifest_,
                          NumberHasNoPlace(number->tensor.name, number->role).WithContext(files_.directory)));
    std::erase_if(slices_, [&](const RankSlice& slice) {
      if (!IsOptimizerState(slice.role) || slice.role == Role::kMaster) return false;
      builder_.account.Leave(Fate::kAllowed, builder_.catalog, slice.tensor);
      return true;
    });
    manifest_.state.erase("param_groups");
    return OkStatus();
  }

  void AddGroups(const std::vector<std::vector<std::string>>& groups) {
    groups_.resize(std::max(groups_.size(), groups.size()));
    for (size_t g = 0; g < groups.size(); ++g)
      groups_[g].insert(groups_[g].end(), groups[g].begin(), groups[g].end());
  }

  // A training without ZeRO has its optimizer in the model states.
  Status ReadUnshardedOptimizers() {
    for (size_t rank = 0; rank < models_.size(); ++rank)
      if (const PyValue* optimizer = FindKind(models_[rank].root(), "optimizer", PyKind::kDict))
        if (const Status status = ReadUnshardedOptimizer(static_cast<int>(rank), *optimizer); !status.ok())
          return Fail(models_[rank].name(), status);
    return OkStatus();
  }
  Status LeaveUnshardedOptimizers() {
    for (const TorchFile& model : models_)
      if (const PyValue* optimizer = FindKind(model.root(), "optimizer", PyKind::kDict))
        builder_.account.LeaveBelow(Fate::kAllowed, model, *optimizer, "optimizer");
    return OkStatus();
  }
  Status ReadUnshardedOptimizer(int rank, const PyValue& optimizer) {
    const TorchFile& model = models_[static_cast<size_t>(rank)];
    const std::set<std::string> buffers = BufferNamesOf(model.root());
    std::vector<size_t> trained;  // into slices_
    std::vector<const StoredArray*> weights;
    for (size_t i = 0; i < slices_.size(); ++i) {
      const RankSlice& slice = slices_[i];
      if (slice.tp != rank % layers_.tp || !slice.is_weight() || buffers.contains(slice.tensor.name))
        continue;
      trained.push_back(i);
      weights.push_back(&slice.tensor);
    }
    CAIRN_ASSIGN_OR_RETURN(UnshardedOptimizer read,
                           ReadUnsharded(fs_, files_.directory, model, optimizer, weights, builder_));
    manifest_.state.update(read.state);
    AddGroups(read.groups);
    for (UnshardedState& state : read.states) {
      by_value_ |= state.role == Role::kMaster;
      const MegatronName place = slices_[trained[state.weight]].place;
      slices_.push_back({place, rank % layers_.tp, state.role, std::move(state.array)});
    }
    for (const auto& [key, tensor] : NumbersOf(optimizer))
      builder_.account.Leave(Fate::kTrainingState, model, *tensor, "optimizer." + key);
    return OkStatus();
  }

  // ---- Frozen parameters, and copies on the other data parallel ranks of ZeRO-3.

  Status AddFrozen() {
    for (size_t rank = 0; rank < models_.size(); ++rank) {
      CAIRN_ASSIGN_OR_RETURN(const std::vector<TorchFile> others, OpenOthers(static_cast<int>(rank)));
      std::vector<const TorchFile*> pieces = {&models_[rank]};
      for (const TorchFile& other : others) pieces.push_back(&other);
      auto frozen = ReadFrozen(pieces, builder_);
      if (!frozen.ok()) return Fail(models_[rank].name(), frozen.status());
      for (StoredArray& array : *frozen) CAIRN_RETURN_IF_ERROR(TakeFrozen(rank, std::move(array)));
      for (const TorchFile& other : others) {
        CAIRN_RETURN_IF_ERROR(ReadCopies(rank, other));
        CAIRN_RETURN_IF_ERROR(LeaveRest(other));
      }
    }
    return OkStatus();
  }

  Result<std::vector<TorchFile>> OpenOthers(int rank) {
    std::vector<TorchFile> others;
    for (int d = 1; IsZero3() && d < DataRanks(rank); ++d) {
      const auto name = files_.zero3_models.find({rank, d});
      if (name == files_.zero3_models.end())
        return NotFound("{}: the model states of data parallel rank {} are missing", files_.directory, d);
      CAIRN_ASSIGN_OR_RETURN(TorchFile file, builder_.OpenFile(fs_, files_.directory, name->second));
      others.push_back(std::move(file));
    }
    return others;
  }

  int DataRanks(int model) const {
    if (manifest_.topology.dp > 1) return manifest_.topology.dp;
    int count = 0;
    while (files_.zero3_models.contains({model, count})) ++count;
    return files_.optimizers.empty() ? count : 1;
  }

  // As a rule the module has it too, if it is not cut.
  Status TakeFrozen(size_t rank, StoredArray array) {
    const int tp = static_cast<int>(rank) % layers_.tp;
    const bool known = std::ranges::any_of(slices_, [&](const RankSlice& slice) {
      return slice.tp == tp && slice.is_weight() && slice.tensor.name == array.name;
    });
    const std::string name = array.name;
    if (!known) return Take(name, tp, Role::kWeight, std::move(array), models_[rank].name());
    builder_.account.Leave(Fate::kReplica, builder_.catalog, array);
    return OkStatus();
  }

  // Buffers, and parameters that are not cut: every data parallel rank of ZeRO-3 stores them.
  Status ReadCopies(size_t rank, const TorchFile& other) {
    const PyValue* module = Find(other.root(), "module");
    if (!module || module->is(PyKind::kNone)) return OkStatus();
    const std::set<std::string> placeholders = PlaceholdersOf(models_[rank].root());
    return ForEachTensor(*module, [&](const std::string& key, const TensorRef& tensor) -> Status {
      if (tensor.shape == Dims{0} && placeholders.contains(key)) return OkStatus();
      if (layers_.megatron && IsMegatronBuffer(key)) {
        builder_.account.Leave(Fate::kBuffer, other, tensor, key);
        return OkStatus();
      }
      CAIRN_ASSIGN_OR_RETURN(StoredArray array, ArrayIn(other, tensor, key));
      copies_.emplace_back(models_[rank].name(), std::move(array));
      return OkStatus();
    });
  }

  // Each copy is compared with the tensor of its name in the first rank's file.
  Status AddCopies() {
    std::map<std::pair<std::string, std::string>, uint32_t> firsts;  // file and name: the array
    std::map<uint32_t, uint32_t> tensors;                            // of an array
    for (const ArrayPart& part : builder_.catalog.parts) tensors.emplace(part.array, part.tensor);
    for (const auto& [array, tensor] : tensors) {
      const StoredArray& stored = builder_.catalog.arrays[array];
      if (stored.extents.empty() || builder_.catalog.tensors[tensor].role != Role::kWeight) continue;
      firsts.emplace(std::pair(builder_.catalog.files[stored.extents[0].file], stored.name), array);
    }
    for (auto& [file, array] : copies_) {
      if (array.extents.empty()) continue;
      const auto first = firsts.find({file, array.name});
      const std::string& own = builder_.catalog.files[array.extents[0].file];
      if (first == firsts.end()) return Fail(own, Corrupt("{} is in it, but not in {}", array.name, file));
      const uint32_t copy = builder_.AddArray(std::move(array));
      builder_.AddReplica(tensors.at(first->second), copy, first->second);
    }
    return OkStatus();
  }

  // Every parameter that the model states name must be in some file. The weights of ZeRO-3 are their masters;
  // elsewhere a master whose weight is missing is not a weight.
  Status CheckNames() const {
    if (!files_.layers.empty() && layers_.megatron) return OkStatus();  // names of its own
    std::set<std::string> there;
    for (const RankSlice& slice : slices_)
      if (IsZero3() || slice.is_weight()) there.insert(slice.tensor.name);
    for (const TorchFile& model : models_)
      for (const auto& group : ParamShapesOf(model.root()))
        for (const auto& [name, shape] : group)
          if (!there.contains(name))
            return Fail(model.name(), NotFound("{} is in param_shapes and in no file", name));
    return OkStatus();
  }

  Status LeaveRest(const TorchFile& model) {
    return builder_.account.LeaveRest(model, {"module", "optimizer", "frozen_param_fragments"}, options_)
        .WithContext(files_.directory);
  }

  FileSystem& fs_;
  const DeepSpeedFiles files_;
  ReaderOptions& options_;
  std::vector<TorchFile> models_;  // by model parallel rank
  PipelineLayers layers_;          // of a model without layer files: the ranks, and whether it is Megatron's
  std::vector<RankSlice> slices_;
  StoredBuilder builder_;
  Manifest manifest_;
  std::vector<std::pair<std::string, StoredArray>> copies_;  // of ZeRO-3, with the file that is read
  std::vector<std::string> doubts_;
  std::vector<std::vector<std::string>> groups_;  // stored names in each group of the optimizer
  bool by_value_ = false;                         // masters were matched with weights by value
};

}  // namespace

Result<std::unique_ptr<ForeignSource>> OpenDeepSpeed(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(DeepSpeedFiles files, FindDeepSpeedFiles(fs, path));
  return DeepSpeedOpener(fs, std::move(files), options).Open();
}

}  // namespace cairn
