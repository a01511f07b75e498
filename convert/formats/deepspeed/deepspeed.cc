// Three readers give the tensors of each model parallel rank: a pipeline's layer files or the module in the
// model states, the optimizer (ZeRO shards, or the model states), and frozen parameters. All are gathered as
// slices of ranks first: which masters have no weight, and whether the embedding is tied, is known only then.
// They are joined last (rank_slices.h). Tensors that are left out are declared to the account, and copies are
// compared. Masters whose place was in doubt or was found by value are proven against their weights.

#include "convert/formats/deepspeed/deepspeed.h"

#include <algorithm>
#include <set>

#include "convert/formats/deepspeed/mixtures.h"
#include "convert/formats/deepspeed/rank_optimizers.h"
#include "convert/formats/megatron_model/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/stream/block_stream.h"
#include "convert/stream/master_proof.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

bool AllMegatron(const std::vector<std::pair<std::string, const TensorRef*>>& tensors) {
  return !tensors.empty() && std::ranges::all_of(tensors, [](const auto& tensor) {
    return tensor.first.starts_with("language_model.") &&
           (ParseMegatronName(tensor.first) || IsMegatronBuffer(tensor.first));
  });
}

class DeepSpeedOpener : RankSlices {
 public:
  using RankSlices::RankSlices;

  Result<std::unique_ptr<ForeignSource>> Open() {
    CAIRN_RETURN_IF_ERROR(ReadModels());
    CAIRN_RETURN_IF_ERROR(files.layers.empty() ? ReadModules() : ReadLayers());
    CAIRN_RETURN_IF_ERROR(ReadExperts(*this));
    CAIRN_ASSIGN_OR_RETURN(const OptimizerFacts optimizer, ReadOptimizers(*this));
    CAIRN_RETURN_IF_ERROR(AddFrozen());
    CAIRN_RETURN_IF_ERROR(CheckNames());
    for (const TorchFile& model : models) CAIRN_RETURN_IF_ERROR(OmitRest(model));
    CAIRN_RETURN_IF_ERROR(JoinSlices(*this));
    CAIRN_RETURN_IF_ERROR(AddCopies());
    manifest.state.update(MegatronState(root()));
    if (const auto groups = manifest.state.find("param_groups"); groups != manifest.state.end())
      MembersOfArrays(builder.catalog, optimizer.groups).PutInto(*groups);
    manifest.step = IntField(manifest.state, "iteration");
    CAIRN_ASSIGN_OR_RETURN(auto source, builder.Open(fs, directory(), std::move(manifest), options.replicas));
    if (!optimizer.doubts.empty() || optimizer.by_value)
      CAIRN_RETURN_IF_ERROR(ProveMasters(*source, kDefaultMaxMemory)
                                .status()
                                .WithContext(optimizer.doubts.empty() ? directory() : optimizer.doubts[0]));
    return source;
  }

 private:
  // The model states of all model parallel ranks; with ZeRO-3 those of the first data parallel rank.
  Status ReadModels() {
    std::map<int, std::string> names = files.models;
    if (names.empty())
      for (const auto& [ranks, name] : files.zero3_models)
        if (ranks.second == 0) names[ranks.first] = name;
    for (const auto& [rank, name] : names) {
      if (rank != static_cast<int>(models.size()))
        return NotFound("{}: the model states of rank {} are missing", directory(), models.size());
      CAIRN_ASSIGN_OR_RETURN(TorchFile model, TorchFile::Open(fs, directory(), name));
      models.push_back(std::move(model));
    }
    if (models.empty()) return NotFound("{}: the model states are missing", directory());
    CAIRN_RETURN_IF_ERROR(CheckModelCount());
    for (const TorchFile& model : models) builder.account.AddFile(model);
    return OkStatus();
  }

  Status CheckModelCount() {
    const auto said = AsInt(Find(root(), "mp_world_size"));
    if (!said) return OkStatus();
    const auto count = static_cast<size_t>(std::max<int64_t>(*said, 1));
    if (count > models.size())
      return NotFound("{}: {} says that there are {} model parallel ranks, but the directory has files of {}",
                      directory(), models[0].name(), count, models.size());
    for (size_t i = count; i < models.size(); ++i)
      manifest.history.push_back("left over from a larger world, not read: " + models[i].name());
    models.resize(count);
    return OkStatus();
  }

  // ---- Weights.

  Status ReadLayers() {
    CAIRN_ASSIGN_OR_RETURN(layers, NameLayers(fs, files, models));
    for (const auto& [key, name] : files.layers) {
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder.OpenFile(fs, directory(), name));
      if (!file.root().is(PyKind::kDict)) return Fail(name, Corrupt("it does not hold a state dict"));
      const std::string& prefix = layers.prefixes[key.first];
      CAIRN_RETURN_IF_ERROR(
          ForEachTensor(file.root(), [&](const std::string& own, const TensorRef& tensor) -> Status {
            const std::string full = prefix + own;
            auto array = ArrayIn(file, tensor, layers.megatron ? own : full);
            if (!array.ok()) return array.status();
            return Take(full, key.second, Role::kWeight, *std::move(array), name);
          }));
    }
    return OkStatus();
  }

  // Weights in the model states themselves.
  Status ReadModules() {
    layers.tp = static_cast<int>(models.size());
    for (int rank = 0; rank < layers.tp; ++rank) {
      const TorchFile& model = models[static_cast<size_t>(rank)];
      const PyValue* module = Find(model.root(), "module");
      if (!module || module->is(PyKind::kNone))
        return Fail(model.name(), NotFound("it does not contain a module"));
      std::vector<std::pair<std::string, const TensorRef*>> tensors;
      CAIRN_RETURN_IF_ERROR(ForEachTensor(*module, [&](const std::string& key, const TensorRef& tensor) {
        tensors.emplace_back(key, &tensor);
        return OkStatus();
      }));
      if (rank == 0) layers.megatron = Find(root(), "args") && AllMegatron(tensors);
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
    auto array = builder.ArrayIn(file, tensor, name);
    if (!array.ok()) return Fail(file.name(), array.status());
    return array;
  }

  // ---- Frozen parameters, and copies on the other data parallel ranks of ZeRO-3.

  Status AddFrozen() {
    for (size_t rank = 0; rank < models.size(); ++rank) {
      CAIRN_ASSIGN_OR_RETURN(const std::vector<TorchFile> others, OpenOthers(static_cast<int>(rank)));
      std::vector<const TorchFile*> pieces = {&models[rank]};
      for (const TorchFile& other : others) pieces.push_back(&other);
      const PyValue* shapes = FindKind(models[rank].root(), "frozen_param_shapes", PyKind::kDict);
      for (const auto& [name, shape] : ShapesIn(shapes)) {
        auto frozen = JoinFrozen(name, shape, pieces);
        if (!frozen.ok()) return Fail(models[rank].name(), frozen.status());
        CAIRN_RETURN_IF_ERROR(TakeFrozen(rank, *std::move(frozen)));
      }
      for (const TorchFile& other : others) {
        CAIRN_RETURN_IF_ERROR(ReadCopies(rank, other));
        CAIRN_RETURN_IF_ERROR(OmitRest(other));
      }
    }
    return OkStatus();
  }

  // A frozen parameter is in no optimizer: all of it is stored next to the module (ZeRO-1 and 2), or each
  // data parallel rank has a piece (ZeRO-3). Elements after the parameter in the last piece are alignment.
  Result<StoredArray> JoinFrozen(const std::string& name, const std::optional<Dims>& shape,
                                 const std::vector<const TorchFile*>& pieces) {
    if (!shape || !CheckedBytes(*shape, 8)) return Corrupt("{} is frozen and has an impossible size", name);
    StoredArray joined{name, Dtype::kF32, *shape};
    const uint64_t volume = shape->Volume();
    uint64_t end = 0;
    for (const TorchFile* file : pieces) {
      const PyValue* fragments = Find(file->root(), "frozen_param_fragments");
      const PyValue* value = fragments ? FindKind(*fragments, name, PyKind::kTensor) : nullptr;
      if (!value) return NotFound("{} is frozen, but {} has no fragment of it", name, file->name());
      CAIRN_ASSIGN_OR_RETURN(const StoredArray part, builder.ArrayIn(*file, *value->tensor, name));
      if (part.transposed || (file != pieces[0] && part.dtype != joined.dtype))
        return NotSupported("a fragment of {} is transposed or has a different type", name);
      joined.dtype = part.dtype;
      const uint64_t all = part.shape.Volume(), count = std::min(all, volume - end);
      Append(joined, StretchOf(part, 0, {count}), end);
      if (count < all)
        builder.account.Omit(Fate::kAlignment, builder.catalog, StretchOf(part, count, {all - count}));
      end += count;
    }
    if (end != volume)
      return Corrupt("{} has {} elements in fragments, but {} in its shape", name, end, volume);
    return joined;
  }

  Result<std::vector<TorchFile>> OpenOthers(int rank) {
    std::vector<TorchFile> others;
    for (int d = 1; IsZero3() && d < DataRanks(rank); ++d) {
      const auto name = files.zero3_models.find({rank, d});
      if (name == files.zero3_models.end())
        return NotFound("{}: the model states of data parallel rank {} are missing", directory(), d);
      CAIRN_ASSIGN_OR_RETURN(TorchFile file, builder.OpenFile(fs, directory(), name->second));
      others.push_back(std::move(file));
    }
    return others;
  }

  int DataRanks(int model) const {
    if (manifest.topology.dp > 1) return manifest.topology.dp;
    int count = 0;
    while (files.zero3_models.contains({model, count})) ++count;
    return files.optimizers.empty() ? count : 1;
  }

  // As a rule the module has it too, if it is not cut.
  Status TakeFrozen(size_t rank, StoredArray array) {
    const int tp = static_cast<int>(rank) % layers.tp;
    const bool known = std::ranges::any_of(slices, [&](const RankSlice& slice) {
      return slice.tp == tp && slice.is_weight() && slice.tensor.name == array.name;
    });
    const std::string name = array.name;
    if (!known) return Take(name, tp, Role::kWeight, std::move(array), models[rank].name());
    builder.account.Omit(Fate::kReplica, builder.catalog, array);
    return OkStatus();
  }

  // Buffers, and parameters that are not cut: every data parallel rank of ZeRO-3 stores them.
  Status ReadCopies(size_t rank, const TorchFile& other) {
    const PyValue* module = Find(other.root(), "module");
    if (!module || module->is(PyKind::kNone)) return OkStatus();
    const std::set<std::string> placeholders = PlaceholdersOf(models[rank].root());
    return ForEachTensor(*module, [&](const std::string& key, const TensorRef& tensor) -> Status {
      if (tensor.shape == Dims{0} && placeholders.contains(key)) return OkStatus();
      if (layers.megatron && IsMegatronBuffer(key)) {
        builder.account.Omit(Fate::kBuffer, other, tensor, key);
        return OkStatus();
      }
      CAIRN_ASSIGN_OR_RETURN(StoredArray array, ArrayIn(other, tensor, key));
      copies_.emplace_back(models[rank].name(), std::move(array));
      return OkStatus();
    });
  }

  // Each copy is compared with the tensor of its name in the first rank's file.
  Status AddCopies() {
    std::map<std::pair<std::string, std::string>, uint32_t> firsts;  // file and name: the array
    std::map<uint32_t, uint32_t> tensors;                            // of an array
    for (const ArrayPart& part : builder.catalog.parts) tensors.emplace(part.array, part.tensor);
    for (const auto& [array, tensor] : tensors) {
      const StoredArray& stored = builder.catalog.arrays[array];
      if (stored.extents.empty() || builder.catalog.tensors[tensor].role != Role::kWeight) continue;
      firsts.emplace(std::pair(builder.catalog.files[stored.extents[0].file], stored.name), array);
    }
    for (auto& [file, array] : copies_) {
      if (array.extents.empty()) continue;
      const auto first = firsts.find({file, array.name});
      const std::string& own = builder.catalog.files[array.extents[0].file];
      if (first == firsts.end()) return Fail(own, Corrupt("{} is in it, but not in {}", array.name, file));
      const uint32_t copy = builder.AddArray(std::move(array));
      builder.AddReplica(tensors.at(first->second), copy, first->second);
    }
    return OkStatus();
  }

  // Every parameter that the model states name must be in some file. The weights of ZeRO-3 are their masters;
  // in other stages a master without its weight is not a weight.
  Status CheckNames() const {
    if (!files.layers.empty() && layers.megatron) return OkStatus();  // names of its own
    std::set<std::string> there;
    for (const RankSlice& slice : slices)
      if (IsZero3() || slice.is_weight()) there.insert(slice.tensor.name);
    for (const TorchFile& model : models)
      for (const auto& group : ParamShapesOf(model.root()))
        for (const auto& [name, shape] : group)
          if (!there.contains(name))
            return Fail(model.name(), NotFound("{} is in param_shapes but in no file", name));
    return OkStatus();
  }

  Status OmitRest(const TorchFile& model) {
    return builder.account.OmitRest(model, {"module", "optimizer", "frozen_param_fragments"}, options)
        .WithContext(directory());
  }

  std::vector<std::pair<std::string, StoredArray>> copies_;  // of ZeRO-3, with the file that is read
};

}  // namespace

Result<std::unique_ptr<ForeignSource>> OpenDeepSpeed(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(DeepSpeedFiles files, FindDeepSpeedFiles(fs, path));
  return DeepSpeedOpener(fs, std::move(files), options).Open();
}

}  // namespace cairn
