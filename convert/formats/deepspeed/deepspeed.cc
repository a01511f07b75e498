// Model states say how many model parallel ranks there are. Weights come from a pipeline's layer files or
// from the module in the states; masters and moments come from ZeRO shards, or from the states. All of it is
// gathered first as slices of ranks (`slices_`): which masters have no weight, and whether the embedding is
// tied, is known only then. The slices are put together by Megatron's modules, by patterns of names, or as
// they are. What is left out is declared to the account, copies are compared, and masters whose place was in
// doubt or was found by value are proven against their weights.

#include "convert/formats/deepspeed/deepspeed.h"

#include <algorithm>
#include <set>

#include "convert/foreign/foreign_identity.h"
#include "convert/formats/deepspeed/deepspeed_files.h"
#include "convert/formats/deepspeed/slice_patterns.h"
#include "convert/formats/deepspeed/unsharded_optimizer.h"
#include "convert/formats/deepspeed/zero_shards.h"
#include "convert/formats/megatron/megatron_names.h"
#include "convert/formats/megatron/megatron_sizes.h"
#include "convert/formats/megatron/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/formats/training/param_groups.h"
#include "convert/formats/training/replicas.h"
#include "convert/stream/block_stream.h"
#include "convert/stream/master_proof.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

struct ModelFile {
  std::string name;
  TorchFile contents;
};

// A tensor of one model parallel rank, under the name it has in its file and over all ranks.
struct RankSlice {
  MegatronName place;  // of Megatron's; the name alone for other models
  Role role = Role::kWeight;
  StoredArray tensor;
};

class DeepSpeedOpener {
 public:
  DeepSpeedOpener(FileSystem& fs, DeepSpeedFiles files, const OpenOptions& options)
      : fs_(fs), files_(std::move(files)), options_(options) {}

  Result<std::unique_ptr<ForeignSource>> Open() {
    CAIRN_RETURN_IF_ERROR(ReadModels());
    CAIRN_RETURN_IF_ERROR(files_.layers.empty() ? ReadModules() : ReadLayers());
    CAIRN_RETURN_IF_ERROR(ReadOptimizers());
    CAIRN_RETURN_IF_ERROR(LeaveNumbers());
    CAIRN_RETURN_IF_ERROR(ReadFrozen());
    CAIRN_RETURN_IF_ERROR(CheckNames());
    CAIRN_RETURN_IF_ERROR(LeaveRest());
    CAIRN_RETURN_IF_ERROR(megatron_ ? AssembleMegatron() : AssemblePlain());
    CAIRN_RETURN_IF_ERROR(AddCopies());
    manifest_.state.update(MegatronState(root()));
    if (const auto groups = manifest_.state.find("param_groups"); groups != manifest_.state.end())
      MembersOfArrays(builder_.catalog, groups_).PutInto(*groups);
    manifest_.step = IntField(manifest_.state, "iteration");
    const std::vector<uint32_t> place = builder_.SortByParameter();
    for (StoredReplica& replica : replicas_) replica.tensor = place[replica.tensor];
    CAIRN_RETURN_IF_ERROR(builder_.Settle(files_.directory, manifest_));
    CAIRN_ASSIGN_OR_RETURN(manifest_.run, RunIdentity(fs_, files_.directory, builder_.catalog));
    CAIRN_ASSIGN_OR_RETURN(auto source,
                           OpenWithReplicas(fs_, files_.directory, std::move(manifest_),
                                            std::move(builder_.catalog), replicas_, options_.replicas));
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

  Result<TorchFile> OpenFile(const std::string& name) {
    return TorchFile::Open(fs_, JoinPath(files_.directory, name));
  }

  // The model states of all model parallel ranks; of ZeRO-3 those of the first data parallel rank.
  Status ReadModels() {
    std::map<int, std::string> names = files_.models;
    if (names.empty())
      for (const auto& [ranks, name] : files_.zero3_models)
        if (ranks.second == 0) names[ranks.first] = name;
    for (const auto& [rank, name] : names) {
      if (rank != static_cast<int>(models_.size()))
        return NotFound("{}: the model states of rank {} are missing", files_.directory, models_.size());
      CAIRN_ASSIGN_OR_RETURN(TorchFile file, OpenFile(name));
      models_.push_back({name, std::move(file)});
    }
    if (models_.empty()) return NotFound("{}: there are no model states", files_.directory);
    CAIRN_RETURN_IF_ERROR(CheckModelCount());
    for (const ModelFile& model : models_) builder_.account.AddFile(model.name, model.contents);
    return OkStatus();
  }

  Status CheckModelCount() {
    const auto count = AsInt(Find(root(), "mp_world_size"));
    if (!count) return OkStatus();
    if (*count > static_cast<int64_t>(models_.size()))
      return NotFound("{}: {} says there are {} model parallel ranks, {} are here", files_.directory,
                      models_[0].name, *count, models_.size());
    for (size_t i = static_cast<size_t>(std::max<int64_t>(*count, 1)); i < models_.size(); ++i)
      manifest_.history.push_back("left over from a larger world, not read: " + models_[i].name);
    models_.resize(std::min(models_.size(), static_cast<size_t>(std::max<int64_t>(*count, 1))));
    return OkStatus();
  }

  const PyValue& root() const { return models_[0].contents.root(); }

  // ---- Weights.

  Status ReadLayers() {
    for (const auto& [key, name] : files_.layers) tp_ = std::max(tp_, key.second + 1);
    if (models_.size() % static_cast<size_t>(tp_) != 0)
      return Corrupt("{}: {} model parallel ranks are not a multiple of {} tensor parallel ones",
                     files_.directory, models_.size(), tp_);
    for (const auto& [key, name] : files_.layers)
      if (!files_.layers.contains({key.first, tp_ - 1}) || !files_.layers.contains({key.first, 0}))
        return NotFound("{}: layer {} is not there for each of {} tensor parallel ranks", files_.directory,
                        key.first, tp_);
    CAIRN_RETURN_IF_ERROR(NameLayers());
    for (const auto& [key, name] : files_.layers) {
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, OpenFile(name));
      CAIRN_RETURN_IF_ERROR(ReadLayer(key.first, key.second, name, file));
    }
    return OkStatus();
  }

  using Shapes = std::map<std::string, Dims>;

  // What each layer file's names are of. In Megatron's pipelines its keys say it: layers have a
  // query_key_value, and a final norm has nothing but itself. In others the optimizer's names do: "3.weight",
  // and "tied_modules.embed.weight" of a layer that stands in several places.
  Status NameLayers() {
    std::map<int, Shapes> layers;
    for (const auto& [key, name] : files_.layers) {
      if (key.second != 0) continue;
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, OpenFile(name));
      if (!file.root().is(PyKind::kDict)) return Fail(name, Corrupt("it holds no state dict"));
      Shapes& shapes = layers[key.first];
      const Status read = ForEachTensor(file.root(), [&](const std::string& tensor, const TensorRef& ref) {
        shapes[tensor] = ref.shape;
        return OkStatus();
      });
      if (!read.ok()) return Fail(name, read);
    }
    megatron_ = IsMegatronPipeline(layers);
    if (megatron_) return OkStatus();
    for (const auto& [index, shapes] : layers) {
      CAIRN_ASSIGN_OR_RETURN(prefixes_[index], OwnPrefix(index, shapes));
    }
    return OkStatus();
  }

  // Sets the prefixes too. With args of Megatron's, a name that has no place there is an error later.
  bool IsMegatronPipeline(const std::map<int, Shapes>& layers) {
    bool known = true;
    size_t transformer = 0;
    for (const auto& [index, shapes] : layers) {
      const bool layer = std::ranges::any_of(
          shapes, [](const auto& s) { return s.first.find("query_key_value") != std::string::npos; });
      prefixes_[index] = layer                       ? fmt::format("layers.{}.", transformer++)
                         : shapes.contains("weight") ? "final_layernorm."
                                                     : "";
      for (const auto& [name, shape] : shapes)
        known &= IsMegatronBuffer(name) || ParseMegatronName(prefixes_[index] + name).has_value();
    }
    const PyValue* args = Find(root(), "args");
    const bool sized = args && (Find(*args, "num_layers") || Find(*args, "hidden_size"));
    return transformer > 0 && (known || sized);
  }

  // Of an unknown family.
  Result<std::string> OwnPrefix(int index, const Shapes& layer) const {
    const std::string own = fmt::format("{}.", index);
    std::map<std::string, Shapes> tied;  // by what is before their names: "tied_modules.embed."
    for (const auto& [name, shape] : TrainedShapes()) {
      if (name.starts_with(own)) return own;
      constexpr std::string_view kTied = "tied_modules.";
      const size_t dot = name.starts_with(kTied) ? name.find('.', kTied.size()) : name.npos;
      if (dot != name.npos) tied[name.substr(0, dot + 1)][name.substr(dot + 1)] = shape;
    }
    std::vector<std::string> fits;
    for (const auto& [prefix, shapes] : tied)
      if (std::ranges::all_of(shapes, [&](const auto& tensor) {
            const auto found = layer.find(tensor.first);
            return found != layer.end() && found->second == tensor.second;
          }))
        fits.push_back(prefix);
    if (fits.size() > 1)
      return NotSupported("{}: layer {} may be {} or {}: nothing says which", files_.directory, index,
                          fits[0], fits[1]);
    return fits.empty() ? own : fits[0];
  }

  // What the model states of the first tensor parallel ranks name as trained or frozen.
  Shapes TrainedShapes() const {
    Shapes shapes;
    const auto add = [&](const PyValue* group) {
      for (size_t i = 0; group && group->is(PyKind::kDict) && i + 1 < group->items.size(); i += 2)
        if (const auto shape = AsDims(group->items[i + 1])) shapes[KeyText(*group->items[i])] = *shape;
    };
    for (size_t rank = 0; rank < models_.size(); rank += static_cast<size_t>(tp_)) {
      const PyValue& root = models_[rank].contents.root();
      const PyValue* groups = Find(root, "param_shapes");
      for (size_t g = 0; const PyValue* group = ItemOf(groups, g); ++g) add(group);
      add(Find(root, "frozen_param_shapes"));
    }
    return shapes;
  }

  Status ReadLayer(int index, int tp, const std::string& name, const TorchFile& file) {
    if (!file.root().is(PyKind::kDict)) return Fail(name, Corrupt("it holds no state dict"));
    const std::string& prefix = prefixes_[index];
    builder_.account.AddFile(name, file);
    const uint32_t file_index = builder_.AddFile(name);
    return ForEachTensor(file.root(), [&](const std::string& key, const TensorRef& tensor) -> Status {
      auto array = ArrayOf(file, tensor, file_index, megatron_ ? key : prefix + key);
      if (!array.ok()) return Fail(name, array.status());
      return Take(prefix + key, tp, Role::kWeight, std::move(*array), name);
    });
  }

  // Weights in the model states themselves.
  Status ReadModules() {
    tp_ = static_cast<int>(models_.size());
    for (size_t rank = 0; rank < models_.size(); ++rank) {
      const ModelFile& model = models_[rank];
      const PyValue* module = Find(model.contents.root(), "module");
      if (!module || module->is(PyKind::kNone)) return Fail(model.name, NotFound("there is no module in it"));
      const uint32_t file_index = builder_.AddFile(model.name);
      std::vector<std::pair<std::string, StoredArray>> found;
      std::vector<std::string> names;
      CAIRN_RETURN_IF_ERROR(
          ForEachTensor(*module, [&](const std::string& key, const TensorRef& tensor) -> Status {
            names.push_back(key);
            if (tensor.shape == Dims{0} && IsPlaceholder(rank, key)) return OkStatus();
            auto array = ArrayOf(model.contents, tensor, file_index, key);
            if (!array.ok()) return Fail(model.name, array.status());
            found.emplace_back(key, std::move(*array));
            return OkStatus();
          }));
      if (rank == 0) megatron_ = Find(root(), "args") && !names.empty() && AllMegatron(names);
      for (auto& [key, array] : found)
        CAIRN_RETURN_IF_ERROR(Take(key, static_cast<int>(rank), Role::kWeight, std::move(array), model.name));
    }
    return OkStatus();
  }

  // Of ZeRO-3, whose parameters are in the optimizer files, or with the frozen ones.
  bool IsPlaceholder(size_t rank, const std::string& name) const {
    const PyValue& root = models_[rank].contents.root();
    const PyValue* groups = Find(root, "param_shapes");
    for (size_t g = 0; groups && g < groups->items.size(); ++g)
      if (Find(*groups->items[g], name)) return true;
    const PyValue* frozen = Find(root, "frozen_param_shapes");
    const PyValue* shared = Find(root, "shared_params");
    return (frozen && Find(*frozen, name)) || (shared && Find(*shared, name));
  }

  static bool AllMegatron(const std::vector<std::string>& names) {
    return std::ranges::all_of(names, [](const std::string& name) {
      return name.starts_with("language_model.") && (ParseMegatronName(name) || IsMegatronBuffer(name));
    });
  }

  Status Take(const std::string& name, int tp, Role role, StoredArray array, const std::string& file) {
    if (megatron_ && IsMegatronBuffer(name)) {
      builder_.account.Leave(Fate::kBuffer, builder_.catalog, array);
      return OkStatus();
    }
    MegatronName place{kBeforeLayers, name};
    if (megatron_) {
      const auto found = ParseMegatronName(name);
      if (!found) return Fail(file, NotSupported("{} has no place in Megatron's GPT", name));
      place = *found;
      tied_ = tied_ && place.name != "lm_head.weight" && place.name != "output_layer.weight";
      if (place.name == "word_embeddings.weight" && role == Role::kWeight)
        padded_vocab_ = array.shape[0] * static_cast<uint64_t>(tp_);
    }
    slices_.push_back({tp, {std::move(place), role, std::move(array)}});
    return OkStatus();
  }

  // ---- Masters and moments.

  Status ReadOptimizers() {
    if (files_.optimizers.empty()) return ReadUnshardedOptimizers();
    const Manifest before = manifest_;
    const Status status = ReadZeroOptimizers(/*masters_alone=*/false);
    // Of ZeRO-3 the masters are the weights, so that damage to them is not the optimizer's alone.
    if (status.ok() || (files_.models.empty() && status.kind() != StatusKind::kNotSupported)) return status;
    ForgetOptimizers(before);
    CAIRN_RETURN_IF_ERROR(LeaveOutOptimizer(options_, manifest_, status));
    const Manifest without = manifest_;
    const Status masters = ReadZeroOptimizers(/*masters_alone=*/true);
    if (masters.ok() || files_.models.empty()) return masters;
    ForgetOptimizers(without);
    for (const auto& [ranks, name] : files_.optimizers) {
      const Result<TorchFile> file = OpenFile(name);
      if (!file.ok()) continue;
      builder_.account.AddFile(name, *file);
      builder_.account.LeaveBelow(Fate::kAllowed, name, *file, file->root(), "optimizer");
    }
    return OkStatus();
  }

  Status ReadZeroOptimizers(bool masters_alone) {
    for (size_t rank = 0; rank < models_.size(); ++rank) {
      std::vector<ZeroShard> shards;
      CAIRN_RETURN_IF_ERROR(OpenShards(static_cast<int>(rank), shards));
      const PyValue* shapes = Find(models_[rank].contents.root(), "param_shapes");
      if (!shapes) return Fail(models_[rank].name, NotSupported("there are no param_shapes in it"));
      const bool round_robin = MegatronState(root()).contains("round_robin_gradients");
      CAIRN_ASSIGN_OR_RETURN(ZeroContents contents,
                             ReadZero(fs_, shards, *shapes, round_robin, masters_alone));
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
      for (ZeroTensor& tensor : contents.tensors)
        if (masters || tensor.role != Role::kMaster)
          CAIRN_RETURN_IF_ERROR(TakeZero(static_cast<int>(rank), std::move(tensor), shards[0].path));
        else
          builder_.account.Leave(Fate::kReplica, builder_.catalog, tensor.array);
    }
    if (!doubts_.empty())
      manifest_.history.push_back(doubts_[0] +
                                  " (round_robin_gradients); the order of param_shapes was taken, "
                                  "and every master rounds to its weight");
    return OkStatus();
  }

  // Those of fp32 weights are the weights again.
  bool WeightsAreMasters() const {
    bool any = false;
    for (const auto& [tp, slice] : slices_) {
      if (slice.role != Role::kWeight) continue;
      if (slice.tensor.dtype != Dtype::kF32) return false;
      any = true;
    }
    return any;
  }

  // Half an optimizer is useless: if one rank's cannot be read, what was read of the others' goes too.
  // `before`: the manifest without any.
  void ForgetOptimizers(const Manifest& before) {
    manifest_ = before;
    std::erase_if(slices_, [](const auto& slice) { return IsOptimizerState(slice.second.role); });
    groups_.clear();
    doubts_.clear();
    by_value_ = false;
  }

  void LeaveMoments(const std::vector<ZeroShard>& shards) {
    for (const ZeroShard& shard : shards)
      for (const char* key : {"base_optimizer_state", "optimizer_state_dict"})
        if (const PyValue* moments = Find(*Find(shard.contents.root(), "optimizer_state_dict"), key))
          builder_.account.LeaveBelow(Fate::kAllowed, builder_.catalog.files[shard.file], shard.contents,
                                      *moments, "optimizer");
  }

  // The numbers of updates, which all ranks and groups have.
  void LeaveSteps(const std::vector<ZeroShard>& shards) {
    for (const ZeroShard& shard : shards) {
      const std::string& name = builder_.catalog.files[shard.file];
      for (const auto& [key, tensor] : NumbersOf(shard.contents.root()))
        builder_.account.Leave(Fate::kTrainingState, name, shard.contents, *tensor, key);
    }
  }
  static std::vector<std::pair<std::string, const TensorRef*>> NumbersOf(const PyValue& root) {
    std::vector<std::pair<std::string, const TensorRef*>> found;
    const Status status = ForEachTensor(root, [&](const std::string& name, const TensorRef& tensor) {
      if (tensor.storage && tensor.shape.rank() == 0) found.emplace_back(name, &tensor);
      return OkStatus();
    });
    if (!status.ok()) found.clear();  // then what they hold is in no tensor, and an error
    return found;
  }

  // States of one number for a whole parameter have no place among Megatron's; masters stay.
  Status LeaveNumbers() {
    const auto number = std::ranges::find_if(slices_, [](const auto& slice) {
      return IsOptimizerState(slice.second.role) && slice.second.tensor.shape.rank() == 0;
    });
    if (!megatron_ || number == slices_.end()) return OkStatus();
    const RankSlice& found = number->second;
    CAIRN_RETURN_IF_ERROR(LeaveOutOptimizer(
        options_, manifest_, NumberHasNoPlace(found.tensor.name, found.role).WithContext(files_.directory)));
    std::erase_if(slices_, [&](const auto& slice) {
      if (!IsOptimizerState(slice.second.role) || slice.second.role == Role::kMaster) return false;
      builder_.account.Leave(Fate::kAllowed, builder_.catalog, slice.second.tensor);
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

  // Of a training without ZeRO, whose model states have the optimizer too.
  Status ReadUnshardedOptimizers() {
    const Manifest before = manifest_;
    for (size_t rank = 0; rank < models_.size(); ++rank) {
      const ModelFile& model = models_[rank];
      const PyValue* optimizer = FindKind(model.contents.root(), "optimizer", PyKind::kDict);
      if (!optimizer) continue;
      const Status status = ReadUnshardedOptimizer(static_cast<int>(rank), *optimizer);
      if (!status.ok()) return LeaveUnshardedOptimizers(before, Fail(model.name, status));
    }
    return OkStatus();
  }
  Status LeaveUnshardedOptimizers(const Manifest& before, const Status& why) {
    ForgetOptimizers(before);
    CAIRN_RETURN_IF_ERROR(LeaveOutOptimizer(options_, manifest_, why));
    for (const ModelFile& model : models_)
      if (const PyValue* optimizer = FindKind(model.contents.root(), "optimizer", PyKind::kDict))
        builder_.account.LeaveBelow(Fate::kAllowed, model.name, model.contents, *optimizer, "optimizer");
    return OkStatus();
  }
  Status ReadUnshardedOptimizer(int rank, const PyValue& optimizer) {
    const ModelFile& model = models_[static_cast<size_t>(rank)];
    std::set<std::string> buffers;
    if (const PyValue* names = Find(model.contents.root(), "buffer_names"))
      for (const PyValue* name : names->items) buffers.insert(KeyText(*name));
    std::vector<size_t> trained;  // into slices_
    std::vector<const StoredArray*> weights;
    for (size_t i = 0; i < slices_.size(); ++i) {
      const auto& [tp, slice] = slices_[i];
      if (tp != rank % tp_ || slice.role != Role::kWeight || buffers.contains(slice.tensor.name)) continue;
      trained.push_back(i);
      weights.push_back(&slice.tensor);
    }
    CAIRN_ASSIGN_OR_RETURN(UnshardedOptimizer read,
                           ReadUnsharded(fs_, files_.directory, model.contents, builder_.AddFile(model.name),
                                         optimizer, weights, builder_));
    manifest_.state.update(read.state);
    AddGroups(read.groups);
    for (UnshardedState& state : read.states) {
      by_value_ |= state.role == Role::kMaster;
      RankSlice slice{slices_[trained[state.weight]].second.place, state.role, std::move(state.array)};
      slices_.push_back({rank % tp_, std::move(slice)});
    }
    for (const auto& [key, tensor] : NumbersOf(optimizer))
      builder_.account.Leave(Fate::kTrainingState, model.name, model.contents, *tensor, "optimizer." + key);
    return OkStatus();
  }

  // ---- Frozen parameters: whole ones beside the module (ZeRO-1, 2), or a piece on each rank (ZeRO-3).

  Status ReadFrozen() {
    for (size_t rank = 0; rank < models_.size(); ++rank) {
      const int model = static_cast<int>(rank);
      std::vector<ModelFile> others;  // of ZeRO-3, the other data parallel ranks'
      for (int d = 1; files_.models.empty() && d < DataRanks(model); ++d) {
        const auto name = files_.zero3_models.find({model, d});
        if (name == files_.zero3_models.end())
          return NotFound("{}: the model states of data parallel rank {} are missing", files_.directory, d);
        CAIRN_ASSIGN_OR_RETURN(TorchFile file, OpenFile(name->second));
        builder_.account.AddFile(name->second, file);
        others.push_back({name->second, std::move(file)});
      }
      CAIRN_RETURN_IF_ERROR(ReadFrozen(rank, others));
      for (const ModelFile& other : others) {
        CAIRN_RETURN_IF_ERROR(ReadCopies(rank, other));
        CAIRN_RETURN_IF_ERROR(LeaveRest(other));
      }
    }
    return OkStatus();
  }

  // Buffers, and parameters that are not cut: every data parallel rank of ZeRO-3 stores them.
  Status ReadCopies(size_t rank, const ModelFile& other) {
    const PyValue* module = Find(other.contents.root(), "module");
    if (!module || module->is(PyKind::kNone)) return OkStatus();
    return ForEachTensor(*module, [&](const std::string& key, const TensorRef& tensor) -> Status {
      if (tensor.shape == Dims{0} && IsPlaceholder(rank, key)) return OkStatus();
      if (megatron_ && IsMegatronBuffer(key)) {
        builder_.account.Leave(Fate::kBuffer, other.name, other.contents, tensor, key);
        return OkStatus();
      }
      auto array = ArrayOf(other.contents, tensor, builder_.AddFile(other.name), key);
      if (!array.ok()) return Fail(other.name, array.status());
      copies_.emplace_back(models_[rank].name, *std::move(array));
      return OkStatus();
    });
  }

  // Each copy is held against what the first rank's file has under its name.
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
      builder_.account.Replica(copy);
      replicas_.push_back({tensors.at(first->second), copy, first->second});
    }
    return OkStatus();
  }

  int DataRanks(int model) const {
    if (manifest_.topology.dp > 1) return manifest_.topology.dp;
    int count = 0;
    while (files_.zero3_models.contains({model, count})) ++count;
    return files_.optimizers.empty() ? count : 1;
  }

  Status ReadFrozen(size_t rank, const std::vector<ModelFile>& others) {
    const ModelFile& model = models_[rank];
    const PyValue* shapes = FindKind(model.contents.root(), "frozen_param_shapes", PyKind::kDict);
    const PyValue* fragments = FindKind(model.contents.root(), "frozen_param_fragments", PyKind::kDict);
    for (size_t i = 0; shapes && i + 1 < shapes->items.size(); i += 2) {
      const std::string name = KeyText(*shapes->items[i]);
      const auto shape = AsDims(shapes->items[i + 1]);
      const PyValue* first = fragments ? Find(*fragments, name) : nullptr;
      if (!shape || !first || !first->is(PyKind::kTensor))
        return Fail(model.name, NotFound("{} is among its frozen parameters but has no fragment", name));
      auto joined = JoinFragments(name, *shape, model, others);
      if (!joined.ok()) return Fail(model.name, joined.status());
      CAIRN_RETURN_IF_ERROR(TakeFrozen(static_cast<int>(rank), name, *std::move(joined), model.name));
    }
    return OkStatus();
  }

  // The module has it too, as a rule, where it is not cut.
  Status TakeFrozen(int rank, const std::string& name, StoredArray array, const std::string& file) {
    const auto known = std::ranges::find_if(slices_, [&](const auto& slice) {
      return slice.first == rank % tp_ && IsWeight(slice) && slice.second.tensor.name == name;
    });
    if (known == slices_.end()) return Take(name, rank % tp_, Role::kWeight, std::move(array), file);
    builder_.account.Leave(Fate::kReplica, builder_.catalog, array);
    return OkStatus();
  }

  Result<StoredArray> JoinFragments(const std::string& name, const Dims& shape, const ModelFile& model,
                                    const std::vector<ModelFile>& others) {
    if (!CheckedBytes(shape, 8)) return Corrupt("{} has an impossible size", name);
    StoredArray joined{name, Dtype::kF32, shape, {}};
    const uint64_t volume = shape.Volume();
    uint64_t end = 0;
    for (size_t d = 0; d <= others.size(); ++d) {
      const ModelFile& file = d == 0 ? model : others[d - 1];
      const PyValue* fragments = Find(file.contents.root(), "frozen_param_fragments");
      const PyValue* value = fragments ? FindKind(*fragments, name, PyKind::kTensor) : nullptr;
      if (!value) return NotFound("{} is frozen, but {} has no fragment of it", name, file.name);
      CAIRN_ASSIGN_OR_RETURN(const StoredArray part,
                             ArrayOf(file.contents, *value->tensor, builder_.AddFile(file.name), name));
      if (part.transposed || (d > 0 && part.dtype != joined.dtype))
        return NotSupported("a fragment of {} is stored transposed or in a type of its own", name);
      joined.dtype = part.dtype;
      const uint64_t all = part.shape.Volume(), count = std::min(all, volume - end);
      for (StoredExtent extent : SliceOf(part, 0, {count}).extents) {
        extent.range = {extent.range.begin + end, extent.range.end + end};
        joined.extents.push_back(extent);
      }
      if (count < all)
        builder_.account.Leave(Fate::kAlignment, builder_.catalog, SliceOf(part, count, {all - count}));
      end += count;
    }
    if (end != volume) return Corrupt("{} has {} elements in its fragments, its shape {}", name, end, volume);
    return joined;
  }

  // What the model states name must be in some file. Weights of ZeRO-3 are their masters; elsewhere a master
  // whose weight is missing is not a weight.
  Status CheckNames() const {
    std::set<std::string> there;
    for (const auto& rank_slice : slices_)
      if (files_.models.empty() || IsWeight(rank_slice)) there.insert(rank_slice.second.tensor.name);
    for (const ModelFile& model : models_) {
      const PyValue* groups = Find(model.contents.root(), "param_shapes");
      const bool own_names = files_.layers.empty() || !megatron_;
      for (size_t g = 0; own_names && groups && g < groups->items.size(); ++g)
        for (size_t i = 0; i + 1 < groups->items[g]->items.size(); i += 2)
          if (const std::string name = KeyText(*groups->items[g]->items[i]); !there.contains(name))
            return Fail(model.name, NotFound("{} is in param_shapes and in no file", name));
    }
    return OkStatus();
  }

  Status LeaveRest(const ModelFile& model) {
    const auto allowed = [&](const std::string& name) { return IsAllowed(options_, name); };
    return builder_.account
        .LeaveRest(model.name, model.contents, {"module", "optimizer", "frozen_param_fragments"}, allowed)
        .WithContext(files_.directory);
  }
  Status LeaveRest() {
    for (const ModelFile& model : models_) CAIRN_RETURN_IF_ERROR(LeaveRest(model));
    return OkStatus();
  }

  Status OpenShards(int rank, std::vector<ZeroShard>& shards) {
    const auto open = [&](int d) -> Status {
      const auto name = files_.optimizers.find({rank, d});
      if (name == files_.optimizers.end())
        return NotFound(
            "{}: the optimizer file of data parallel rank {} and model parallel rank {} is missing",
            files_.directory, d, rank);
      CAIRN_ASSIGN_OR_RETURN(TorchFile file, OpenFile(name->second));
      builder_.account.AddFile(name->second, file);
      shards.push_back(
          {JoinPath(files_.directory, name->second), builder_.AddFile(name->second), std::move(file)});
      return OkStatus();
    };
    CAIRN_RETURN_IF_ERROR(open(0));
    const auto count = PartitionCount(shards[0].contents.root());
    if (!count.ok()) return count.status().WithContext(shards[0].path);
    for (uint64_t d = 1; d < *count; ++d) {
      CAIRN_RETURN_IF_ERROR(open(static_cast<int>(d)));
      const auto other = PartitionCount(shards.back().contents.root());
      if (!other.ok() || *other != *count)
        return Corrupt(
            "{}: its world size differs from that of {}; one of them is left over from another save",
            shards.back().path, shards[0].path);
    }
    for (const auto& [ranks, name] : files_.optimizers)
      if (ranks.first == rank && ranks.second >= static_cast<int>(*count))
        manifest_.history.push_back("left over from a larger world, not read: " + name);
    return OkStatus();
  }

  // Names of a pipeline count the layers of the whole model: "3.input_layernorm.weight".
  Status TakeZero(int rank, ZeroTensor tensor, const std::string& file) {
    std::string name = tensor.name;
    if (!files_.layers.empty() && megatron_) {
      const size_t dot = name.find('.');
      const bool number =
          dot != std::string::npos && dot > 0 &&
          std::ranges::all_of(name.substr(0, dot), [](char c) { return c >= '0' && c <= '9'; });
      if (number && dot < 9) {
        const auto prefix = prefixes_.find(std::stoi(name.substr(0, dot)));
        if (prefix == prefixes_.end()) return Corrupt("{}: {} belongs to no layer file", file, name);
        name = prefix->second + name.substr(dot + 1);
      } else if (name.starts_with("tied_modules.")) {
        name = name.substr(name.find('.', std::string_view("tied_modules.").size()) + 1);
        // The last stage has the whole embedding, of which only the weights that are tied are kept up.
        if (rank >= tp_ && name != "word_embeddings.weight") {
          builder_.account.Leave(Fate::kReplica, builder_.catalog, tensor.array);
          return OkStatus();
        }
      }
    }
    return Take(name, rank % tp_, tensor.role, std::move(tensor.array), file);
  }

  // ---- All ranks together.

  Status AssembleMegatron() {
    const PyValue* args = Find(root(), "args");
    if (!args)
      return Fail(models_[0].name, NotSupported("there are no args in it, which say what the model is"));
    const double version = AsNumber(Find(root(), "checkpoint_version")).value_or(3);
    const auto shown = SizesShown(*args, ShapesOfFirstRank(), tp_);
    if (!shown.ok()) return Fail(models_[0].name, shown.status());
    auto read = ReadMegatronArgs(*args, version, tied_, options_, *shown);
    if (!read.ok()) return Fail(models_[0].name, read.status());
    args_ = *std::move(read);
    TrimVocabulary();
    manifest_.model = args_.facts;
    manifest_.topology.tp = tp_;
    manifest_.topology.pp = static_cast<int>(models_.size()) / tp_;
    MegatronAssembler assembler(args_, tp_, builder_);
    std::set<std::pair<int, std::string>> weights;
    for (const auto& slice : slices_)
      if (IsWeight(slice)) weights.emplace(slice.second.place.layer, slice.second.place.name);
    for (auto& [tp, slice] : slices_) {
      const bool alone =
          slice.role == Role::kMaster && !weights.contains({slice.place.layer, slice.place.name});
      const Role role = alone ? Role::kWeight : slice.role;
      const Dims shape = slice.tensor.shape;
      CAIRN_RETURN_IF_ERROR(
          assembler
              .Add({slice.place.name, slice.place.layer, tp, role, slice.tensor, shape, Box::Whole(shape)})
              .WithContext(files_.directory));
    }
    replicas_ = assembler.replicas();
    return OkStatus();
  }

  MegatronShapes ShapesOfFirstRank() const {
    MegatronShapes shapes;
    for (const auto& [tp, slice] : slices_)
      if (tp == 0 && slice.tensor.shape.rank() > 0)
        shapes.try_emplace({slice.place.layer, slice.place.name}, slice.tensor.shape);
    return shapes;
  }

  static bool IsWeight(const std::pair<int, RankSlice>& slice) { return slice.second.role == Role::kWeight; }

  void TrimVocabulary() {
    uint64_t vocab = 0;
    for (const char* info : {"checkpoint_info", "universal_checkpoint_info"})
      if (const PyValue* found = Find(root(), info))
        vocab = static_cast<uint64_t>(
            std::max<int64_t>(0, AsInt(Find(*found, "original_vocab_size")).value_or(0)));
    if (options_.vocab_size > 0) vocab = options_.vocab_size;
    if (vocab > 0 && vocab <= padded_vocab_)
      args_.vocab = vocab;
    else if (args_.vocab == padded_vocab_)
      manifest_.history.push_back(
          fmt::format("the vocabulary of {} rows may have padding; no file says so", padded_vocab_));
    args_.facts["vocab_size"] = args_.vocab;
  }

  Status AssemblePlain() {
    if (models_.size() > 1) return AssembleSlices();
    std::set<std::string> weights;
    for (const auto& [tp, slice] : slices_)
      if (slice.role == Role::kWeight) weights.insert(slice.place.name);
    const nlohmann::json shared = MegatronState(root()).value("shared_params", nlohmann::json::object());
    std::vector<std::pair<std::string, const StoredArray*>> again;  // under a second name
    for (auto& [tp, slice] : slices_) {
      const auto first = shared.find(slice.place.name);
      if (first != shared.end() && weights.contains(first->get<std::string>())) {
        again.emplace_back(first->get<std::string>(), &slice.tensor);
        continue;
      }
      // A master without a weight is what the training would round to one.
      const bool alone = slice.role == Role::kMaster && !weights.contains(slice.place.name);
      const Role role = alone ? Role::kWeight : slice.role;
      const StoredArray& array = slice.tensor;
      const Dims shape = array.tensor_shape();
      const size_t known = builder_.catalog.tensors.size();
      CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor,
                             builder_.Tensor({.name = slice.place.name, .shape = shape}, role, array.dtype));
      if (tensor == known) builder_.AddPart(tensor, Box::Whole(shape), slice.tensor);
    }
    for (const auto& [first, array] : again) CAIRN_RETURN_IF_ERROR(AddAgain(first, *array));
    return OkStatus();
  }

  // Stages of a pipeline and tensor parallel slices, under their own names.
  Status AssembleSlices() {
    auto patterns = SlicePatterns::Read(Find(root(), "universal_checkpoint_info"));
    if (!patterns.ok()) return Fail(models_[0].name, patterns.status());
    SliceAssembler assembler(*std::move(patterns), tp_, builder_);
    std::set<std::string> weights, buffers;
    for (const auto& slice : slices_)
      if (IsWeight(slice)) weights.insert(slice.second.place.name);
    for (const ModelFile& model : models_)
      if (const PyValue* names = Find(model.contents.root(), "buffer_names"))
        for (const PyValue* name : names->items) buffers.insert(KeyText(*name));
    for (const auto& [tp, slice] : slices_) {
      const bool alone = slice.role == Role::kMaster && !weights.contains(slice.place.name);
      CAIRN_RETURN_IF_ERROR(assembler
                                .Add(tp, slice.place.name, alone ? Role::kWeight : slice.role,
                                     buffers.contains(slice.place.name), slice.tensor)
                                .WithContext(files_.directory));
    }
    replicas_ = assembler.replicas();
    return OkStatus();
  }

  // What is stored under a second name is the same stretch of the file, or else must hold the same.
  Status AddAgain(const std::string& first, const StoredArray& array) {
    const auto& parts = builder_.catalog.parts;
    const auto part = std::ranges::find_if(parts, [&](const ArrayPart& p) {
      const TensorEntry& tensor = builder_.catalog.tensors[p.tensor];
      return tensor.role == Role::kWeight && tensor.spec.name == first;
    });
    if (part == parts.end())
      return Corrupt("{}: {} should share the memory of {}, which is missing", files_.directory, array.name,
                     first);
    const StoredArray& same = builder_.catalog.arrays[part->array];
    if (same.dtype != array.dtype || !(same.shape == array.shape))
      return Corrupt("{}: {} should share the memory of {}, which has another shape or type",
                     files_.directory, array.name, first);
    const auto place = [](const StoredArray& a) {
      return std::pair(a.extents[0].file, a.extents[0].file_offset);
    };
    if (array.extents.empty() || place(array) == place(same)) return OkStatus();
    const uint32_t copy = builder_.AddArray(array);
    builder_.account.Replica(copy);
    replicas_.push_back({part->tensor, copy, part->array});
    return OkStatus();
  }

  FileSystem& fs_;
  const DeepSpeedFiles files_;
  const OpenOptions& options_;
  std::vector<ModelFile> models_;
  bool megatron_ = false;
  bool tied_ = true;
  int tp_ = 1;
  uint64_t padded_vocab_ = 0;
  std::map<int, std::string> prefixes_;            // index of a layer file: of its names
  std::vector<std::pair<int, RankSlice>> slices_;  // with their tensor parallel ranks
  MegatronArgs args_;
  StoredBuilder builder_;
  Manifest manifest_;
  std::vector<StoredReplica> replicas_;
  std::vector<std::pair<std::string, StoredArray>> copies_;  // of ZeRO-3, with the file that is read
  std::vector<std::string> doubts_;
  std::vector<std::vector<std::string>> groups_;  // stored names in each of the optimizer's
  bool by_value_ = false;                         // which master is whose was found so
};

}  // namespace

Result<std::unique_ptr<ForeignSource>> OpenDeepSpeed(FileSystem& fs, const std::string& path,
                                                     const OpenOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(DeepSpeedFiles files, FindDeepSpeedFiles(fs, path));
  return DeepSpeedOpener(fs, std::move(files), options).Open();
}

}  // namespace cairn
