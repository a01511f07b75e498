// Each tensor of the model is visited once, with the slices of all TP ranks side by side. Every slice
// becomes a chunk: one zip, in the file of the data parallel rank with the fewest bytes so far, and a box of
// the stacked tensor: tensors of all layers share one entry. Only when all zips have their places can
// .metadata be made; files that got no zip are dropped before.

#include <algorithm>
#include <map>
#include <set>

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

Dims Prepended(uint64_t first, const Dims& rest) {
  Dims dims{first};
  for (const uint64_t size : rest) dims.push_back(size);
  return dims;
}

// The whole tensor, of which a rank has a slice of this shape.
ParameterSpec WholeOf(const MegatronTensor& tensor, const Dims& slice, const Topology& topology) {
  return WithSlices({.name = {}, .shape = slice, .cuts = tensor.cuts}, slice, topology);
}

// The halves of a gated MLP are apart: all gates, then all ups.
Result<std::vector<ShardSlice>> SlicesOf(const MegatronTensor& tensor, const Topology& topology, int rank) {
  Dims shape = tensor.shape;
  if (tensor.gated) shape[0] /= 2;
  const ParameterSpec whole = WholeOf(tensor, shape, topology);
  CAIRN_ASSIGN_OR_RETURN(const Slice held, SliceOf(whole, topology, rank));
  if (!tensor.gated) return std::vector<ShardSlice>{{held.box, tensor.parts}};
  std::vector<ShardSlice> halves;
  for (uint64_t half = 0; half < 2; ++half) {
    ShardSlice& slice = halves.emplace_back(held.box, std::vector<MegatronPart>{tensor.parts[half]});
    slice.box.offset[0] += half * whole.shape[0];
    slice.parts[0].in_array.offset[0] = 0;
  }
  return halves;
}

class TorchDistPlanner {
 public:
  TorchDistPlanner(const CheckpointSource& source, const TargetOptions& options) : plan_(source, options) {}

  Result<TargetFiles> Plan() {
    CAIRN_RETURN_IF_ERROR(plan_.Choose(/*may_be_fp32=*/true));
    load_.resize(plan_.topology.world());
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
    std::vector<std::vector<MegatronTensor>> ranks;  // of each TP rank, in one order
    for (int tp = 0; tp < plan_.topology.tp; ++tp) {
      CAIRN_ASSIGN_OR_RETURN(auto held, MegatronTensors(plan_.tensors, plan_.shape, plan_.topology, tp));
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
    const MegatronTensor& tensor = *of_ranks[0];
    const std::string key = fmt::format("{}{}", IsInLayers(tensor.layer) ? kLayers : "",
                                        tensor.module->CoreName(tensor.Kind(), /*local_spec=*/false));
    if (IsInLayers(tensor.layer)) stacked_.insert(key);
    CAIRN_RETURN_IF_ERROR(AddRole(key, Role::kWeight, of_ranks));
    if (plan_.optimizer == CoreOptimizer::kNone) return OkStatus();
    CAIRN_RETURN_IF_ERROR(AddRole("optimizer.state.exp_avg." + key, Role::kExpAvg, of_ranks));
    CAIRN_RETURN_IF_ERROR(AddRole("optimizer.state.exp_avg_sq." + key, Role::kExpAvgSq, of_ranks));
    if (plan_.optimizer == CoreOptimizer::kFp32) return OkStatus();
    const std::string prefix = plan_.optimizer == CoreOptimizer::kDistributed ? "param." : "fp32_param.";
    return AddRole("optimizer.state." + prefix + key, Role::kMaster, of_ranks);
  }

  Status AddRole(const std::string& name, Role role, const std::vector<const MegatronTensor*>& of_ranks) {
    const MegatronTensor& tensor = *of_ranks[0];
    const Dtype dtype = plan_.tensors.tensors[TensorOf(tensor.parts[0], role)].entry.dtype;
    DcpEntry& entry = EntryOf(name, tensor, dtype);
    const int slices = tensor.cuts.empty() ? 1 : plan_.topology.tp;
    for (int tp = 0; tp < slices; ++tp) {
      for (const MegatronPart& part : of_ranks[tp]->parts)
        if (const auto& written = plan_.tensors.tensors[TensorOf(part, role)].entry;
            written.dtype != *entry.dtype)
          return NotSupported("{} is {}, but others in {} are {}; torch_dist has one type for all of them",
                              DisplayName(written), Name(written.dtype), name, Name(*entry.dtype));
      CAIRN_ASSIGN_OR_RETURN(const auto held, SlicesOf(*of_ranks[tp], plan_.topology, tp));
      for (const ShardSlice& slice : held) AddChunk(slice, tensor, role, tp, entry);
    }
    return OkStatus();
  }

  uint32_t TensorOf(const MegatronPart& part, Role role) const {
    return plan_.tensors.parameters[part.parameter].TensorOf(role);
  }

  DcpEntry& EntryOf(const std::string& name, const MegatronTensor& tensor, Dtype dtype) {
    const auto [at, added] = index_.try_emplace(name, entries_.size());
    if (!added) return entries_[at->second];
    Dims shape = WholeOf(tensor, tensor.shape, plan_.topology).shape;
    if (IsInLayers(tensor.layer)) shape = Prepended(static_cast<uint64_t>(plan_.shape.layers), shape);
    return entries_.emplace_back(DcpEntry{name, {}, dtype, shape, {}});
  }

  void AddChunk(const ShardSlice& slice, const MegatronTensor& tensor, Role role, int tp, DcpEntry& entry) {
    Box box = slice.box;
    if (IsInLayers(tensor.layer))
      box = {Prepended(static_cast<uint64_t>(tensor.layer), box.offset), Prepended(1, box.extent)};
    const uint64_t volume = box.Volume();
    const uint32_t zip = plan_.builder.BeginZip(LeastLoaded(tensor.layer, tp, volume), "archive");
    const uint32_t storage = plan_.builder.EmitTensor(zip, *entry.dtype, box.extent);
    const uint32_t array =
        plan_.builder.AddArray({entry.name, *entry.dtype, slice.box.extent, {{{0, volume}, storage, 0}}});
    for (const MegatronPart& part : slice.parts)
      plan_.builder.target.parts.push_back({part, TensorOf(part, role), array});
    entry.chunks.emplace_back(box, zip);
  }

  // The rank's number is that of its file.
  uint32_t LeastLoaded(int layer, int tp, uint64_t volume) {
    const int pp = StageOf(layer, plan_.layers) % plan_.topology.pp;
    const std::vector<int> ranks = plan_.topology.GroupOf(plan_.topology.Moved(tp, Axis::kPp, pp), Axis::kDp);
    const int best = *std::ranges::min_element(ranks, {}, [&](int rank) { return load_[rank]; });
    load_[best] += volume;
    return static_cast<uint32_t>(best);
  }

  // ---- Opaque states of modules: None, from which each module makes its own.

  void AddExtraStates() {
    std::map<int, const MegatronModule*> in_order;
    for (const MegatronModule& module : MegatronModules())
      if (module.cut_as().place == 0) in_order[module.core_order] = &module;
    std::vector<std::string> modules;
    for (const auto& [order, module] : in_order) {
      const bool norm = !plan_.options.local_spec && module->fused.empty() &&
                        stacked_.contains(fmt::format("{}{}.weight", kLayers, module->core));
      if (module->linear || norm) modules.emplace_back(module->core);
    }
    if (!plan_.options.local_spec) modules.push_back("self_attention.core_attention");
    for (const std::string& module : modules)
      for (int64_t layer = 0; layer < plan_.shape.layers; ++layer)
        AddNothing(
            fmt::format("{}{}.{}/shard_{}_{}", kLayers, module, kExtraState, layer, plan_.shape.layers),
            static_cast<int>(layer));
    if (!plan_.options.local_spec)
      AddNothing(fmt::format("decoder.final_layernorm.{}/shard_0_1", kExtraState), kAfterLayers);
  }

  void AddNothing(const std::string& name, int layer) {
    const uint32_t zip = plan_.builder.BeginZip(LeastLoaded(layer, 0, 1), "archive");
    plan_.builder.pickle(zip).Json(nlohmann::json::array({nullptr}));
    entries_.push_back({name, {}, std::nullopt, {}, {{Box{}, zip}}});
  }

  CorePlan plan_;
  std::vector<uint64_t> load_;  // elements in the file of each rank
  std::vector<DcpEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // of tensors: into entries_
  std::set<std::string, std::less<>> stacked_;        // names of the tensors that all layers share
};

}  // namespace

Result<TargetFiles> PlanTorchDist(const CheckpointSource& source, const TargetOptions& options) {
  return TorchDistPlanner(source, options).Plan();
}

}  // namespace cairn
