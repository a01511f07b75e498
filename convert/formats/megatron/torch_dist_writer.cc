// Each tensor of the model is visited once, with the slices of all TP ranks side by side. Every slice
// becomes a chunk: one zip, in the file of the data parallel rank with the fewest bytes so far, and a box of
// the stacked tensor: tensors of all layers share one entry. Only when all zips have their places can
// .metadata be made; files that got no zip are dropped before.

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/base/first_axis.h"
#include "ckpt/model/placement.h"
#include "convert/formats/dcp/dcp_index.h"
#include "convert/formats/dcp/dcp_metadata.h"
#include "convert/formats/megatron/megatron_core.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/formats/megatron_model/megatron_modules.h"
#include "convert/formats/megatron_model/megatron_names.h"

namespace cairn {
namespace {

constexpr std::string_view kLayers = "decoder.layers.";
constexpr const char* kMetadata =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", )"
    R"("common_backend_version": 1})";

// A box of a tensor over all TP ranks, without the dimension of the layers.
struct ShardSlice {
  Box box;
  std::vector<MegatronPart> parts;  // in_array: within the box
};

// Experts one by one, as Megatron writes and reads them.
std::vector<ShardSlice> OfEachExpert(const std::vector<ShardSlice>& slices) {
  std::vector<ShardSlice> of_each;
  for (uint64_t expert = 0; expert < slices[0].box.extent[0]; ++expert)
    for (ShardSlice slice : slices) {
      slice.box.offset[0] += expert;
      slice.box.extent[0] = 1;
      for (MegatronPart& part : slice.parts) {
        part.box.offset[0] += expert;
        part.box.extent[0] = part.in_array.extent[0] = 1;
      }
      of_each.push_back(std::move(slice));
    }
  return of_each;
}

// The whole tensor, of which a rank has a slice of this shape.
ParameterSpec WholeOf(const MegatronTensor& tensor, const Dims& slice, const Topology& topology) {
  return cairn::WholeOf({.name = {}, .shape = slice, .cuts = tensor.cuts}, slice, topology);
}

// The halves of a gated MLP are apart: all gates, then all ups.
Result<std::vector<ShardSlice>> SlicesOf(const MegatronTensor& tensor, const Topology& topology, int rank) {
  Dims shape = tensor.shape;
  const int dim = tensor.module->gated_dim();
  if (tensor.gated) shape[dim] /= 2;
  const ParameterSpec whole = WholeOf(tensor, shape, topology);
  CAIRN_ASSIGN_OR_RETURN(const Slice held, SliceOf(whole, topology, rank));
  if (!tensor.gated) return std::vector<ShardSlice>{{held.box, tensor.parts}};
  std::vector<ShardSlice> halves;
  for (uint64_t half = 0; half < 2; ++half) {
    ShardSlice& slice = halves.emplace_back(held.box, std::vector<MegatronPart>{tensor.parts[half]});
    slice.box.offset[dim] += half * whole.shape[dim];
    slice.parts[0].in_array.offset[dim] = 0;
  }
  return halves;
}

class TorchDistPlanner {
 public:
  TorchDistPlanner(const CheckpointSource& source, const TargetOptions& options) : plan_(source, options) {}

  Result<TargetFiles> Plan() {
    CAIRN_RETURN_IF_ERROR(plan_.Choose(kTorchDistForm));
    load_.resize(plan_.topology.world());
    for (int layer = 1; std::cmp_less(layer, plan_.shape.layers); ++layer)
      layers_differ_ |= IsMixture(layer) != IsMixture(0);
    const std::string name = DirectoryName(), directory = name + "/";
    for (int rank = 0; rank < plan_.topology.world(); ++rank)
      plan_.builder.AddFile(fmt::format("{}__{}_0.distcp", directory, rank));
    CAIRN_RETURN_IF_ERROR(AddTensors());
    AddExtraStates();
    EmitTorchDistCommon(plan_, plan_.builder.BeginTorchFile(directory + "common.pt"));
    plan_.builder.Place();
    plan_.builder.DropEmptyFiles();
    plan_.builder.AddText(directory + std::string(kDcpMetadata), DcpMetadata(entries_, plan_.builder.target));
    plan_.builder.AddText(directory + "metadata.json", kMetadata);
    plan_.builder.AddText(std::string(kMegatronTracker),
                          name == kMegatronRelease ? name : std::to_string(plan_.state.iteration));
    plan_.state.notes.push_back("random states are not carried; the training seeds them anew");
    plan_.AddNotes();
    return TargetFiles{std::move(plan_.builder.target), "", std::move(plan_.state.notes)};
  }

 private:
  // Megatron treats weights from outside a training as a release.
  std::string DirectoryName() const {
    if (plan_.state.iteration == 0 && plan_.optimizer == CoreOptimizer::kNone)
      return std::string(kMegatronRelease);
    return IterationName(plan_.state.iteration);
  }

  // ---- Tensors.

  Status AddTensors() {
    // One list for each rank that holds different parts; all lists have the same order.
    std::vector<std::vector<MegatronTensor>> ranks;
    const int count = std::max(plan_.topology.tp, plan_.shape.experts > 0 ? ExpertRanks() : 1);
    for (int rank = 0; rank < count; ++rank) {
      CAIRN_ASSIGN_OR_RETURN(auto held, MegatronTensors(plan_.tensors, plan_.shape, plan_.topology, rank));
      ranks.push_back(std::move(held));
    }
    for (size_t i = 0; i < ranks[0].size(); ++i) {
      std::vector<const MegatronTensor*> of_ranks;
      for (const auto& held : ranks) of_ranks.push_back(&held[i]);
      CAIRN_RETURN_IF_ERROR(AddTensor(of_ranks));
    }
    return OkStatus();
  }

  Status AddTensor(const std::vector<const MegatronTensor*>& of_ranks) {
    const std::string key = KeyOf(*of_ranks[0]);
    keys_.insert(key);
    CAIRN_RETURN_IF_ERROR(AddRole(key, Role::kWeight, of_ranks));
    for (const Role& role : StatesOf(*of_ranks[0]))
      CAIRN_RETURN_IF_ERROR(
          AddRole(fmt::format("{}{}.{}", kOptimizerState, plan_.places.NameOf(role), key), role, of_ranks));
    return OkStatus();
  }

  std::string KeyOf(const MegatronTensor& tensor) const {
    const MegatronLayer layer = IsMixture(tensor.layer) ? MegatronLayer::kMixture : MegatronLayer::kDense;
    return Prefix(tensor.layer, *tensor.module) +
           plan_.shape.dialect.Name(*tensor.module, layer, tensor.bias);
  }

  std::vector<Role> StatesOf(const MegatronTensor& tensor) const {
    if (plan_.optimizer == CoreOptimizer::kNone || tensor.module->cut_as().keeps_type) return {};
    std::vector<Role> roles = plan_.tensors.parameters[tensor.parts[0].parameter].roles();
    if (plan_.optimizer != CoreOptimizer::kFp32) roles.push_back(Role::kMaster);
    return roles;
  }

  int ExpertRanks() const { return plan_.topology.ep * plan_.topology.size(Axis::kEtp); }
  bool IsMixture(int layer) const { return ModulesOf(plan_.shape, layer).Has("mlp.router"); }
  // All layers are stacked under one name, unless only some are mixtures.
  bool IsStacked(int layer) const {
    return IsInLayers(layer) && !layers_differ_ && !plan_.shape.IsMtp(layer);
  }
  std::string Prefix(int layer, const MegatronModule& module) const {
    return Prefix(layer).append(plan_.shape.IsMtp(layer) && !module.of_mtp ? kInsideMtp : "");
  }
  std::string Prefix(int layer) const {
    if (!IsInLayers(layer)) return "";
    if (plan_.shape.IsMtp(layer)) return fmt::format("mtp.layers.{}.", layer - plan_.shape.layers);
    return layers_differ_ ? fmt::format("{}{}.", kLayers, layer) : std::string(kLayers);
  }

  Status AddRole(const std::string& name, Role role, const std::vector<const MegatronTensor*>& of_ranks) {
    const MegatronTensor& tensor = *of_ranks[0];
    const Dtype dtype = plan_.tensors.tensors[TensorOf(tensor.parts[0], role)].entry.dtype;
    DcpEntry& entry = EntryOf(name, tensor, dtype);
    for (int rank = 0; rank < RanksThatCut(tensor); ++rank) {
      if (IsCopyOfSlice(tensor, rank)) continue;
      CAIRN_RETURN_IF_ERROR(CheckTypes(*of_ranks[rank], role, entry));
      CAIRN_ASSIGN_OR_RETURN(auto held, SlicesOf(*of_ranks[rank], plan_.topology, rank));
      if (tensor.module->of_experts()) held = OfEachExpert(held);
      for (const ShardSlice& slice : held) AddChunk(slice, tensor, role, rank, entry);
    }
    return OkStatus();
  }

  int RanksThatCut(const MegatronTensor& tensor) const {
    if (tensor.cuts.empty()) return 1;
    return tensor.module->of_experts() ? ExpertRanks() : plan_.topology.tp;
  }

  // Biases of experts whose columns are cut are whole on each rank of ETP.
  bool IsCopyOfSlice(const MegatronTensor& tensor, int rank) const {
    return tensor.module->of_experts() && plan_.topology.Coordinate(rank, Axis::kEtp) > 0 &&
           std::ranges::find(tensor.cuts, Axis::kEtp, &Cut::axis) == tensor.cuts.end();
  }

  Status CheckTypes(const MegatronTensor& tensor, Role role, const DcpEntry& entry) const {
    for (const MegatronPart& part : tensor.parts)
      if (const auto& written = plan_.tensors.tensors[TensorOf(part, role)].entry;
          written.dtype != *entry.dtype)
        return NotSupported("{} is {}, but others in {} are {}; torch_dist has one type for all of them",
                            DisplayName(written), Name(written.dtype), entry.name, Name(*entry.dtype));
    return OkStatus();
  }

  uint32_t TensorOf(const MegatronPart& part, Role role) const {
    return plan_.tensors.parameters[part.parameter].TensorOf(role);
  }

  DcpEntry& EntryOf(const std::string& name, const MegatronTensor& tensor, Dtype dtype) {
    const auto [at, added] = index_.try_emplace(name, entries_.size());
    if (!added) return entries_[at->second];
    Dims shape = WholeOf(tensor, tensor.shape, plan_.topology).shape;
    if (IsStacked(tensor.layer)) shape = WithFirst(static_cast<uint64_t>(plan_.shape.layers), shape);
    return entries_.emplace_back(DcpEntry{name, {}, dtype, shape, {}});
  }

  void AddChunk(const ShardSlice& slice, const MegatronTensor& tensor, Role role, int rank, DcpEntry& entry) {
    Box box = slice.box;
    if (IsStacked(tensor.layer))
      box = {WithFirst(static_cast<uint64_t>(tensor.layer), box.offset), WithFirst(1, box.extent)};
    const uint64_t volume = box.Volume();
    const Axis replicas = tensor.module->of_experts() ? Axis::kEdp : Axis::kDp;
    const uint32_t zip = plan_.builder.BeginZip(LeastLoaded(tensor.layer, rank, replicas, volume), "archive");
    const uint32_t storage = plan_.builder.EmitTensor(zip, *entry.dtype, box.extent);
    const uint32_t array =
        plan_.builder.AddArray({entry.name, *entry.dtype, slice.box.extent, {{{0, volume}, storage, 0}}});
    for (const MegatronPart& part : slice.parts)
      plan_.builder.target.parts.push_back({part, TensorOf(part, role), array});
    entry.chunks.emplace_back(box, zip);
  }

  // The rank's number is that of its file.
  uint32_t LeastLoaded(int layer, int first, Axis replicas, uint64_t volume) {
    const int pp = StageOf(layer, plan_.layers) % plan_.topology.pp;
    const std::vector<int> ranks =
        plan_.topology.GroupOf(plan_.topology.Moved(first, Axis::kPp, pp), replicas);
    const int best = *std::ranges::min_element(ranks, {}, [&](int rank) { return load_[rank]; });
    load_[best] += volume;
    return static_cast<uint32_t>(best);
  }

  // ---- Opaque states of modules: None, from which each module makes its own.

  void AddExtraStates() {
    std::vector<const MegatronModule*> in_order;
    for (const MegatronModule& module : MegatronModules())
      if (module.cut_as().place == 0 && !module.core.empty()) in_order.push_back(&module);
    std::ranges::stable_sort(in_order, {}, &MegatronModule::core_order);
    for (const MegatronModule* module : in_order)
      for (int layer = 0; std::cmp_less(layer, plan_.shape.AllLayers()); ++layer) {
        const bool norm = !plan_.options.local_spec && module->cut_as().extents.size() == 1;
        const std::string name = Prefix(layer, *module) + std::string(module->core);
        if ((module->linear || norm) && keys_.contains(name + ".weight") &&
            with_state_.emplace(name, layer).second)
          AddExtraState(name, module->of_experts() ? plan_.shape.experts : 0, layer);
      }
    if (plan_.options.local_spec) return;
    for (int layer = 0; std::cmp_less(layer, plan_.shape.AllLayers()); ++layer)
      AddExtraState(fmt::format("{}{}self_attention.core_attention", Prefix(layer),
                                plan_.shape.IsMtp(layer) ? kInsideMtp : ""),
                    0, layer);
    AddNothing(fmt::format("decoder.final_layernorm.{}/shard_0_1", kExtraState), kAfterLayers);
  }

  // One for each of `experts`, if these are not 0.
  void AddExtraState(std::string_view module, int64_t experts, int layer) {
    const std::string name = fmt::format("{}.{}/shard_", module, kExtraState);
    for (int64_t expert = 0; expert < std::max<int64_t>(1, experts); ++expert) {
      std::vector<int64_t> at, of;
      if (IsStacked(layer)) at.push_back(layer), of.push_back(plan_.shape.layers);
      if (experts > 0) at.push_back(expert), of.push_back(experts);
      if (at.empty()) at.push_back(0), of.push_back(1);
      AddNothing(fmt::format("{}{}_{}", name, fmt::join(at, "."), fmt::join(of, ".")), layer);
    }
  }

  void AddNothing(const std::string& name, int layer) {
    const uint32_t zip = plan_.builder.BeginZip(LeastLoaded(layer, 0, Axis::kDp, 1), "archive");
    plan_.builder.pickle(zip).Json(nlohmann::json::array({nullptr}));
    entries_.push_back({name, {}, std::nullopt, {}, {{Box{}, zip}}});
  }

  CorePlan plan_;
  std::vector<uint64_t> load_;  // elements in the file of each rank
  std::vector<DcpEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // of tensors: into entries_
  std::set<std::string, std::less<>> keys_;           // names of the weights
  std::set<std::pair<std::string, int>> with_state_;  // modules that have an opaque state, and their layers
  bool layers_differ_ = false;                        // some are mixtures, some are not
};

}  // namespace

Result<TargetFiles> PlanTorchDist(const CheckpointSource& source, const TargetOptions& options) {
  return TorchDistPlanner(source, options).Plan();
}

}  // namespace cairn
