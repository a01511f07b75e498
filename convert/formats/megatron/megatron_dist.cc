// A name gives role, module, and whether all layers are stacked under it; a stacked tensor is cut into its
// layers. The optimizer's tensors come in three forms: laid out like their weight, cut into cells
// (megatron_cells.h), or flat in the buckets of the distributed optimizer. Buckets are read last, since
// their content is found by value with the help of all weights. Items without a place must be states or
// buffers of a known name; anything else that has bytes makes the account fail.

#include "convert/formats/megatron/megatron_dist.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "ckpt/base/first_axis.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/io/strict_json.h"
#include "convert/formats/dcp/dcp_index.h"
#include "convert/formats/megatron/megatron_buckets.h"
#include "convert/formats/megatron/megatron_cells.h"
#include "convert/formats/megatron_model/megatron_model.h"
#include "convert/formats/megatron_model/megatron_names.h"
#include "convert/formats/megatron_model/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr const char* kDistMetadata = "metadata.json";
constexpr uint64_t kMaxMetadataBytes = 1 << 20;

// A save of cairn.megatron (python/cairn/megatron.py): a run of Cairn with one step is next to metadata.json.
constexpr const char* kCairnBackend = "cairn";

// The top level of a checkpoint: a file, or since 0.19 an item that is a list of it.
constexpr const char* kCommon = "common.pt";
constexpr const char* kCommonItem = "common_state/shard_0_1";

constexpr std::string_view kStateItems[] = {"rng_state",           "common_state",        "optimizer.",
                                            "opt_param_scheduler", "rerun_state_machine", "args"};

const DcpBytes* CommonItemOf(const DcpIndex& index) {
  const auto item = std::ranges::find(index.bytes, kCommonItem, &DcpBytes::name);
  return item == index.bytes.end() ? nullptr : &*item;
}

// Without "chained_1.", with which some versions begin the names of each of two optimizers.
std::string_view WithoutChained(std::string_view name) {
  std::string_view rest = name;
  if (!rest.starts_with("chained_")) return name;
  rest.remove_prefix(std::strlen("chained_"));
  return TakeNumber<int>(rest) && rest.starts_with('.') ? rest.substr(1) : name;
}

bool IsOfOptimizer(std::string_view name) { return WithoutChained(name).starts_with("optimizer."); }

// A parsed name: a role, a module, and whether all layers are stacked under it.
struct DistName {
  MegatronName place;
  Role role = Role::kWeight;
  bool stacked = false;
  std::optional<int> half = {};    // of gate and up: a tensor of its own
  std::optional<int> expert = {};  // its tensor holds only this one
  std::string weight = {};         // of a state: the name of its weight
};

// With `singleton_local_shards` gate and up, and experts, are tensors of their own: "linear_fc1.weight_w" and
// "_v", "mlp.experts.experts.7.linear_fc1.weight".
void TakeSingle(std::string& name, DistName& found) {
  for (const auto& [end, half] : {std::pair("_w", 0), std::pair("_v", 1)})
    for (const std::string_view kind : {".weight", ".bias"})
      if (name.ends_with(fmt::format("linear_fc1{}{}", kind, end))) {
        found.half = half;
        name.resize(name.size() - 2);
      }
  constexpr std::string_view kExperts = ".mlp.experts.experts.";
  const size_t at = name.find(kExperts);
  if (at == name.npos) return;
  std::string_view rest = std::string_view(name).substr(at + kExperts.size());
  const auto expert = TakeNumber<int>(rest);
  if (!expert || !rest.starts_with('.')) return;
  found.expert = expert;
  name = fmt::format("{}{}", name.substr(0, at + kExperts.size()), rest.substr(1));
}

std::optional<DistName> ParseWeight(std::string_view stored) {
  DistName found;
  std::string name(stored);
  constexpr std::string_view kLayers = "decoder.layers.";
  found.stacked = name.starts_with(kLayers) && name.size() > kLayers.size() &&
                  !(name[kLayers.size()] >= '0' && name[kLayers.size()] <= '9');
  if (found.stacked) name.insert(kLayers.size(), "0.");
  TakeSingle(name, found);
  const auto place = ParseMegatronName(name, /*mtp=*/true);
  if (!place) return std::nullopt;
  found.place = *place;
  return found;
}

// In "optimizer.state.momentum_buffer.decoder.final_layernorm.weight" the key, which may have dots, ends
// where a weight's name begins.
std::optional<DistName> ParseDistName(std::string_view stored) {
  stored = WithoutChained(stored);
  if (!stored.starts_with(kOptimizerState)) return ParseWeight(stored);
  stored.remove_prefix(kOptimizerState.size());
  for (size_t end = stored.find('.'); end != stored.npos; end = stored.find('.', end + 1)) {
    const std::string_view key = stored.substr(0, end), weight = stored.substr(end + 1);
    const bool master = key == kTorchDistPlaces.master || key == kShardedTorchDistPlaces.master;
    const auto role = master ? Role::kMaster : StateRole(key);
    auto found = ParseWeight(weight);
    if (!role || !found) continue;
    found->role = *role;
    found->weight = weight;
    return found;
  }
  return std::nullopt;
}

class MegatronDistOpener {
 public:
  MegatronDistOpener(FileSystem& fs, std::string directory, ReaderOptions& options)
      : fs_(fs),
        directory_(std::move(directory)),
        options_(options),
        items_(fs, directory_, builder_.account) {}

  Result<std::unique_ptr<ForeignSource>> Open() {
    CAIRN_ASSIGN_OR_RETURN(DcpIndex index, ReadDcpIndex(fs_, directory_));
    DropLostStates(fs_, directory_, options_, IsOfOptimizer, index);
    items_.ReadAhead(index);
    bucketed_ = std::ranges::any_of(index.tensors, MegatronBuckets::IsOne, &DcpTensor::name);
    CAIRN_RETURN_IF_ERROR(ReadCommon(index));
    MegatronAssembler assembler(shape_, /*tp_size=*/1, builder_);
    const Status cut = CutStates(index);
    if (!cut.ok()) CAIRN_RETURN_IF_ERROR(LeaveOutOptimizer(options_, manifest_, cut.WithContext(directory_)));
    for (const DcpTensor& tensor : index.tensors) {
      if (MegatronBuckets::IsOne(tensor.name)) continue;
      if (IsAllowed(options_, tensor.name)) {
        CAIRN_RETURN_IF_ERROR(items_.Omit(Fate::kAllowed, tensor));
        continue;
      }
      const auto name = ParseDistName(tensor.name);
      const bool step = IsCommonStep(tensor.name);
      const bool left_out = !cut.ok() && IsOfOptimizer(tensor.name);
      if (IsMegatronBuffer(tensor.name) || step || left_out) {
        CAIRN_RETURN_IF_ERROR(items_.Omit(left_out ? Fate::kAllowed
                                          : step   ? Fate::kTrainingState
                                                   : Fate::kBuffer,
                                          tensor));
        continue;
      }
      if (!name) return HasNoPlace(tensor.name).WithContext(directory_);
      CAIRN_RETURN_IF_ERROR(Add(tensor, *name, assembler).WithContext(directory_));
    }
    if (bucketed_) CAIRN_RETURN_IF_ERROR(ReadBuckets(index, assembler));
    if (const auto groups = manifest_.state.find("param_groups"); groups != manifest_.state.end())
      PutMembersByMegatronsRule(builder_.catalog, *groups);
    CAIRN_RETURN_IF_ERROR(LeaveItems(index));
    return builder_.Open(fs_, directory_, std::move(manifest_));
  }

 private:
  // Leaves values that are not tensors: states of modules, random states, and the state of all ranks. The
  // name of an item is that of all ranks and layers, "/shard_3_8" is its own.
  Status LeaveItems(const DcpIndex& index) {
    for (const DcpBytes& bytes : index.bytes) {
      const std::string name = bytes.name.substr(0, bytes.name.find('/'));
      if (IsAllowed(options_, name)) {
        CAIRN_RETURN_IF_ERROR(items_.Omit(Fate::kAllowed, bytes.name, bytes.item));
        continue;
      }
      const bool buffer = IsMegatronBuffer(name);
      const bool state = std::ranges::any_of(
          kStateItems, [&](auto known) { return WithoutChained(name).starts_with(known); });
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, items_.Open(bytes.name, bytes.item));
      const Fate fate = buffer && IsEmptyState(file.root()) ? Fate::kBuffer : Fate::kTrainingState;
      if (state || buffer) builder_.account.OmitBelow(fate, file, file.root(), name);
      const bool read = &bytes == common_ || IsOfOptimizer(name);
      if (fate == Fate::kTrainingState && !read) builder_.account.OmitValue(name);
    }
    return items_.ListAll(index);
  }
  Status ReadBuckets(const DcpIndex& index, MegatronAssembler& assembler) {
    Status status = buckets_.status();
    MegatronOptimizer optimizer(fs_, directory_, builder_);
    if (status.ok()) status = buckets_->Read(items_, optimizer, builder_);
    if (status.ok()) status = ReadGroups(index);
    if (status.ok()) return buckets_->Assemble(assembler, builder_).WithContext(directory_);
    for (const DcpTensor& tensor : index.tensors)
      if (MegatronBuckets::IsOne(tensor.name)) CAIRN_RETURN_IF_ERROR(items_.Omit(Fate::kAllowed, tensor));
    return LeaveOutOptimizer(options_, manifest_, status.WithContext(directory_));
  }

  // Its values that are not tensors: those of the first model parallel rank, as all ranks of each optimizer
  // have the same.
  Status ReadGroups(const DcpIndex& index) {
    for (const char* prefix : {"", "chained_0.", "chained_1."}) {
      const auto item = std::ranges::find(
          index.bytes, fmt::format("{}optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1", prefix),
          &DcpBytes::name);
      if (item == index.bytes.end()) continue;
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, items_.Open(item->name, item->item));
      if (file.root().is(PyKind::kList) && !file.root().items.empty())
        AddParamGroups(*file.root().items[0], manifest_.state);
    }
    return OkStatus();
  }

  static bool IsCommonStep(const std::string& name) {
    return WithoutChained(name).starts_with("optimizer.state.common_step");
  }

  // Finds the optimizer's tensors that are not of their weight's shape. Errors: NotSupported naming one that
  // is not a known state.
  Status CutStates(const DcpIndex& index) {
    std::map<std::string, Dims> shapes;
    for (const DcpTensor& tensor : index.tensors) shapes.emplace(tensor.name, tensor.shape);
    for (const DcpTensor& tensor : index.tensors) {
      const auto name = ParseDistName(tensor.name);
      if (IsOfOptimizer(tensor.name) && !IsCommonStep(tensor.name) &&
          !MegatronBuckets::IsOne(WithoutChained(tensor.name)) && !name && !IsAllowed(options_, tensor.name))
        return NotSupported("{} is not a known optimizer state", tensor.name);
      if (!name) continue;
      const auto weight = shapes.find(name->weight);
      if (weight == shapes.end() || weight->second == tensor.shape) continue;
      CAIRN_ASSIGN_OR_RETURN(auto cells, CellsOf(tensor, weight->second, items_, builder_));
      cut_.emplace(tensor.name, CutState{weight->second, std::move(cells)});
    }
    return OkStatus();
  }

  Status ReadCommon(const DcpIndex& index) {
    const std::string path = JoinPath(directory_, kCommon);
    if (fs_.Stat(path).ok()) {
      CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder_.OpenFile(fs_, directory_, kCommon));
      builder_.account.OmitBelow(Fate::kTrainingState, file, file.root(), kCommon);
      return ReadCommon(file, file.root(), index).WithContext(path);
    }
    common_ = CommonItemOf(index);
    if (!common_) return NotFound("{} is missing; it describes the model", path);
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, items_.Open(common_->name, common_->item));
    if (!file.root().is(PyKind::kList) || file.root().items.empty())
      return Corrupt("{}: common_state does not have the form that Megatron writes", directory_);
    return ReadCommon(file, *file.root().items[0], index).WithContext(directory_);
  }

  // `root`: the top level, in `file`.
  Status ReadCommon(const TorchFile& file, const PyValue& root, const DcpIndex& index) {
    CAIRN_RETURN_IF_ERROR(ReadArgs(root, index));
    LeaveWhatIsNotRead(root, {}, common_ ? "common_state." : "common.pt.", builder_.account);
    return AddNumbersInTensors(fs_, file, root, manifest_.state);
  }

  Status ReadArgs(const PyValue& root, const DcpIndex& index) {
    CAIRN_ASSIGN_OR_RETURN(shape_, ReadMegatronTraining(root, /*checkpoint_version=*/3, options_, manifest_));
    const PyValue* args = Find(root, "args");
    if (bucketed_ && args) buckets_ = MegatronBuckets::Make(*args, shape_, manifest_.topology, index);
    if (args) manifest_.topology.zero = AsInt(Find(*args, "use_distributed_optimizer")).value_or(0) != 0;
    return OkStatus();
  }

  Status Add(const DcpTensor& tensor, const DistName& name, MegatronAssembler& assembler) {
    if (const auto cut = cut_.find(tensor.name); cut != cut_.end()) {
      for (MegatronCell& cell : cut->second.cells)
        CAIRN_RETURN_IF_ERROR(Add(name, cut->second.weight, cell.box, std::move(cell.array), assembler));
      return OkStatus();
    }
    for (const DcpChunk& chunk : tensor.chunks) {
      CAIRN_ASSIGN_OR_RETURN(StoredArray array,
                             items_.Array(tensor, chunk, builder_.AddFile(chunk.item.file)));
      if (array.transposed) return NotSupported("a chunk of {} is stored transposed", tensor.name);
      CAIRN_RETURN_IF_ERROR(Add(name, tensor.shape, chunk.box, std::move(array), assembler));
    }
    return OkStatus();
  }

  // `array` holds `box` of a tensor of `shape`.
  Status Add(const DistName& name, const Dims& shape, const Box& box, StoredArray array,
             MegatronAssembler& assembler) {
    CAIRN_ASSIGN_OR_RETURN(const int layer, shape_.LayerOf(name.place));
    MegatronSlice slice{name.place.name, layer, 0, name.role, std::move(array), shape, box};
    if (!name.stacked) return AddSlice(Widened(std::move(slice), name), assembler);
    if (shape.rank() < 2 || std::cmp_not_equal(shape[0], shape_.layers))
      return Corrupt("{} of shape {} does not stack {} layers", slice.tensor.name, ToString(shape),
                     shape_.layers);
    const StoredArray all = std::move(slice.tensor);
    slice.shape = WithoutFirst(shape);
    slice.box = {WithoutFirst(box.offset), WithoutFirst(box.extent)};
    for (uint64_t i = 0; i < box.extent[0]; ++i) {
      slice.layer = static_cast<int>(box.offset[0] + i);
      slice.tensor = StretchOf(all, i * slice.box.Volume(), slice.box.extent);
      CAIRN_RETURN_IF_ERROR(AddSlice(Widened(slice, name), assembler));
    }
    return OkStatus();
  }

  // A tensor of one half, or of one expert, as a part of the whole.
  MegatronSlice Widened(MegatronSlice slice, const DistName& name) const {
    const bool expert = name.expert && slice.shape.rank() < kMaxRank;
    if (expert) {
      slice.tensor.shape = WithFirst(1, slice.tensor.shape);
      slice.shape = WithFirst(static_cast<uint64_t>(shape_.experts), slice.shape);
      slice.box = {WithFirst(static_cast<uint64_t>(*name.expert), slice.box.offset),
                   WithFirst(1, slice.box.extent)};
    }
    const int dim = expert ? 1 : 0;
    if (name.half && slice.shape.rank() > dim) {
      slice.box.offset[dim] += static_cast<uint64_t>(*name.half) * slice.shape[dim];
      slice.shape[dim] *= 2;
    }
    return slice;
  }

  Status AddSlice(const MegatronSlice& slice, MegatronAssembler& assembler) {
    if (bucketed_ && buckets_.ok() && slice.role == Role::kWeight) {
      const Status status =
          buckets_->AddWeight({slice.layer, slice.name}, slice.shape, slice.box, slice.tensor);
      if (!status.ok()) buckets_ = status;
    }
    return assembler.Add(slice);
  }

  FileSystem& fs_;
  const std::string directory_;
  ReaderOptions& options_;
  StoredBuilder builder_;
  DcpItems items_;
  MegatronShape shape_;
  // A tensor of the optimizer that is not laid out like its weight.
  struct CutState {
    Dims weight;  // shape
    std::vector<MegatronCell> cells;
  };
  std::map<std::string, CutState> cut_;
  const DcpBytes* common_ = nullptr;  // the item of the index that has the top level
  bool bucketed_ = false;             // the distributed optimizer's state is in its buckets
  Result<MegatronBuckets> buckets_ =
      NotSupported("its optimizer is in buckets, which only the training's args explain, and it has none");
  Manifest manifest_;
};

// The backend in metadata.json; null if there is none.
nlohmann::json BackendOf(FileSystem& fs, const std::string& directory) {
  const std::string path = JoinPath(directory, kDistMetadata);
  if (!fs.Stat(path).ok()) return {};
  const auto text = ReadSmallFile(fs, path, kMaxMetadataBytes);
  if (!text.ok()) return {};
  const auto json = ParseStrictJson(*text);
  return json.ok() && json->is_object() ? json->value("sharded_backend", nlohmann::json()) : nlohmann::json();
}

}  // namespace

bool IsMegatronDist(FileSystem& fs, const std::string& directory) {
  const nlohmann::json backend = BackendOf(fs, directory);
  return !backend.is_null() && backend != kCairnBackend;
}

bool IsSavedByCairnMegatron(FileSystem& fs, const std::string& directory) {
  return BackendOf(fs, directory) == kCairnBackend;
}

Result<std::unique_ptr<ForeignSource>> OpenMegatronDist(FileSystem& fs, const std::string& directory,
                                                        ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json json,
                         ReadJsonObject(fs, JoinPath(directory, kDistMetadata), kMaxMetadataBytes));
  const auto backend = json.value("sharded_backend", nlohmann::json());
  if (backend != "torch_dist")
    return NotSupported(
        "{}: its backend is {}, not torch_dist; load and save it again with Megatron-Core before 0.16",
        directory, backend.dump());
  return MegatronDistOpener(fs, directory, options).Open();
}

Status CheckMegatronFiles(FileSystem& fs, const std::string& directory,
                          const std::vector<std::string>& names) {
  const auto has = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  if (!has(kDcpMetadata) || has(kDistMetadata)) return OkStatus();
  const std::string lost = JoinPath(directory, kDistMetadata);
  if (has(kCommon)) return NotFound("{}: is missing, although {} exists", lost, kCommon);
  const Result<DcpIndex> index = ReadDcpIndex(fs, directory);
  if (!index.ok() || !CommonItemOf(*index)) return OkStatus();
  return NotFound("{}: is missing, although {} lists {}", lost, kDcpMetadata, kCommonItem);
}

}  // namespace cairn
