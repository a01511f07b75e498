// The states of each rank become slices of the tensors whose names they have. Half an optimizer is useless,
// so an error of one rank discards the states of all, and the user may allow the optimizer to be left out.
// Then only ZeRO's masters are read: they are the weights of ZeRO-3.

#include "convert/formats/deepspeed/rank_optimizers.h"

#include <algorithm>

#include "convert/formats/deepspeed/mixtures.h"
#include "convert/formats/deepspeed/unsharded_optimizer.h"
#include "convert/formats/deepspeed/zero_file.h"
#include "convert/formats/deepspeed/zero_shards.h"
#include "convert/formats/megatron_model/megatron_model.h"
#include "convert/formats/megatron_model/megatron_state.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

// Tensors of one number; none if the value is damaged, so that the account reports its bytes as an error.
std::vector<std::pair<std::string, const TensorRef*>> NumbersOf(const PyValue& root) {
  std::vector<std::pair<std::string, const TensorRef*>> found;
  const Status status = ForEachTensor(root, [&](const std::string& name, const TensorRef& tensor) {
    if (tensor.storage && tensor.shape.rank() == 0) found.emplace_back(name, &tensor);
    return OkStatus();
  });
  if (!status.ok()) found.clear();
  return found;
}

class OptimizerReader {
 public:
  explicit OptimizerReader(RankSlices& ranks)
      : ranks_(ranks), builder_(ranks.builder), manifest_(ranks.manifest) {}

  Result<OptimizerFacts> Read() {
    CAIRN_RETURN_IF_ERROR(ReadStates());
    CAIRN_RETURN_IF_ERROR(LeaveNumbers());
    return std::move(facts_);
  }

 private:
  // If they cannot be read and the user allows it: only masters, else none.
  Status ReadStates() {
    const bool sharded = !ranks_.files.optimizers.empty();
    const Manifest before = manifest_;
    const Status status = sharded ? ReadZeroOptimizers(/*masters_alone=*/false) : ReadUnshardedOptimizers();
    if (status.ok()) return status;
    // The masters of ZeRO-3 are the weights, so damage to them affects more than the optimizer.
    if (sharded && ranks_.IsZero3() && status.kind() != StatusKind::kNotSupported) return status;
    ForgetOptimizers(before);
    CAIRN_RETURN_IF_ERROR(LeaveOutOptimizer(ranks_.options, manifest_, status));
    if (!sharded) return LeaveUnshardedOptimizers();
    const Manifest without = manifest_;
    const Status masters = ReadZeroOptimizers(/*masters_alone=*/true);
    if (masters.ok() || ranks_.IsZero3()) return masters;
    ForgetOptimizers(without);
    for (const auto& [ranks, name] : ranks_.files.optimizers) {
      const Result<TorchFile> file = builder_.OpenFile(ranks_.fs, ranks_.directory(), name);
      if (file.ok()) builder_.account.OmitBelow(Fate::kAllowed, *file, file->root(), "optimizer");
    }
    return OkStatus();
  }

  // Half an optimizer is useless: if one rank's cannot be read, those of all ranks go. `before`: the manifest
  // without any.
  void ForgetOptimizers(const Manifest& before) {
    manifest_ = before;
    std::erase_if(ranks_.slices, [](const RankSlice& slice) { return IsOptimizerState(slice.role); });
    facts_ = {};
  }

  // The shards of a model parallel rank, by data parallel rank. Errors: NotFound if one is missing; Corrupt
  // if they are not of one save.
  Result<std::vector<TorchFile>> OpenShards(int rank) {
    std::vector<TorchFile> shards;
    std::vector<size_t> counts;
    size_t count = 1;
    for (size_t d = 0; d < count; ++d) {
      const auto name = ranks_.files.optimizers.find({rank, static_cast<int>(d)});
      if (name == ranks_.files.optimizers.end())
        return NotFound(
            "{}: the optimizer file of data parallel rank {} and model parallel rank {} is missing",
            ranks_.directory(), d, rank);
      CAIRN_ASSIGN_OR_RETURN(TorchFile file, builder_.OpenFile(ranks_.fs, ranks_.directory(), name->second));
      const auto own = PartitionCounts(file);
      if (d == 0) {
        CAIRN_ASSIGN_OR_RETURN(counts, own);
        count = *std::ranges::max_element(counts);
      }
      builder_.AddFile(file.name());
      shards.push_back(std::move(file));
      if (!own.ok() || *own != counts)
        return Corrupt(
            "{}: its world size differs from that of {}; one of them is left over from another save",
            shards.back().path(), shards[0].path());
    }
    for (const auto& [key, name] : ranks_.files.optimizers)
      if (key.first == rank && key.second >= static_cast<int>(count))
        manifest_.history.push_back("left over from a larger world, not read: " + name);
    return shards;
  }

  Status ReadZeroOptimizers(bool masters_alone) {
    for (size_t rank = 0; rank < ranks_.models.size(); ++rank) {
      CAIRN_ASSIGN_OR_RETURN(const std::vector<TorchFile> shards, OpenShards(static_cast<int>(rank)));
      CAIRN_ASSIGN_OR_RETURN(ZeroContents contents, ReadZero(ranks_, rank, shards, masters_alone));
      facts_.AddGroups(contents.groups);
      facts_.by_value |=
          !ranks_.files.experts.empty();  // only the configuration says which ranks share experts
      LeaveSteps(shards);
      if (masters_alone) LeaveMoments(shards);
      for (const StoredArray& array : contents.alignment)
        builder_.account.Omit(Fate::kAlignment, builder_.catalog, array);
      manifest_.topology.zero = contents.stage;
      manifest_.topology.dp = static_cast<int>(shards.size());
      manifest_.state.update(contents.state);
      facts_.doubts.insert(facts_.doubts.end(), contents.doubts.begin(), contents.doubts.end());
      const bool masters = !WeightsAreMasters();
      for (auto& [role, tensor] : contents.tensors)
        if (masters || role != Role::kMaster)
          CAIRN_RETURN_IF_ERROR(TakeZero(static_cast<int>(rank), role, std::move(tensor), shards[0].path()));
        else
          builder_.account.Omit(Fate::kReplica, builder_.catalog, tensor);
    }
    if (!facts_.doubts.empty())
      manifest_.history.push_back(facts_.doubts[0] +
                                  " (round_robin_gradients); the order of param_shapes was taken, "
                                  "and every master rounds to its weight");
    return OkStatus();
  }

  // Masters of fp32 weights are the weights again.
  bool WeightsAreMasters() const {
    bool any = false;
    for (const RankSlice& slice : ranks_.slices) {
      if (!slice.is_weight()) continue;
      if (slice.tensor.dtype != Dtype::kF32) return false;
      any = true;
    }
    return any;
  }

  // Names of a pipeline count the layers of the whole model: "3.input_layernorm.weight".
  Status TakeZero(int rank, Role role, StoredArray tensor, const std::string& file) {
    std::string name = tensor.name;
    if (!ranks_.files.layers.empty() && ranks_.layers.megatron) {
      if (const auto parsed = ParsePipelineName(name)) {
        const auto prefix = ranks_.layers.prefixes.find(parsed->layer);
        if (prefix == ranks_.layers.prefixes.end())
          return Corrupt("{}: {} belongs to no layer file", file, name);
        name = prefix->second + parsed->rest;
      } else if (name.starts_with("tied_modules.")) {
        name = name.substr(name.find('.', std::string_view("tied_modules.").size()) + 1);
        // The last stage has the whole embedding, but only the tied weights of it are kept up to date.
        if (rank >= ranks_.layers.tp && name != "word_embeddings.weight") {
          builder_.account.Omit(Fate::kReplica, builder_.catalog, tensor);
          return OkStatus();
        }
      }
    }
    return ranks_.Take(name, rank % ranks_.layers.tp, role, std::move(tensor), file);
  }

  void LeaveMoments(const std::vector<TorchFile>& shards) {
    for (const TorchFile& shard : shards)
      for (const char* key : {"base_optimizer_state", "optimizer_state_dict"})
        if (const PyValue* moments = Find(*Find(shard.root(), "optimizer_state_dict"), key))
          builder_.account.OmitBelow(Fate::kAllowed, shard, *moments, "optimizer");
  }

  // The numbers of updates, which all ranks and groups have.
  void LeaveSteps(const std::vector<TorchFile>& shards) {
    for (const TorchFile& shard : shards)
      for (const auto& [key, tensor] : NumbersOf(shard.root()))
        builder_.account.Omit(Fate::kTrainingState, shard, *tensor, key);
  }

  // Megatron's states cannot hold one number for a whole parameter; masters are kept.
  Status LeaveNumbers() {
    const auto number = std::ranges::find_if(ranks_.slices, [](const RankSlice& slice) {
      return IsOptimizerState(slice.role) && slice.tensor.shape.rank() == 0;
    });
    if (!ranks_.layers.megatron || number == ranks_.slices.end()) return OkStatus();
    CAIRN_RETURN_IF_ERROR(LeaveOutOptimizer(
        ranks_.options, manifest_,
        NumberHasNoPlace(number->tensor.name, number->role).WithContext(ranks_.directory())));
    std::erase_if(ranks_.slices, [&](const RankSlice& slice) {
      if (!IsOptimizerState(slice.role) || slice.role == Role::kMaster) return false;
      builder_.account.Omit(Fate::kAllowed, builder_.catalog, slice.tensor);
      return true;
    });
    manifest_.state.erase("param_groups");
    return OkStatus();
  }

  // A training without ZeRO has its optimizer in the model states.
  Status ReadUnshardedOptimizers() {
    if (!ranks_.files.experts.empty()) {
      CAIRN_ASSIGN_OR_RETURN(const auto optimizers, ExpertOptimizers(ranks_, expert_files_));
      for (const RankOptimizer& own : optimizers) CAIRN_RETURN_IF_ERROR(ReadOne(0, own));
      return OkStatus();
    }
    for (size_t rank = 0; rank < ranks_.models.size(); ++rank)
      if (const PyValue* optimizer = FindKind(ranks_.models[rank].root(), "optimizer", PyKind::kDict))
        CAIRN_RETURN_IF_ERROR(ReadOne(rank, {&ranks_.models[rank], optimizer}));
    return OkStatus();
  }
  Status ReadOne(size_t rank, const RankOptimizer& own) {
    const Status status = ReadUnsharded(ranks_, rank, own, facts_);
    if (!status.ok()) return ranks_.Fail(own.file->name(), status);
    for (const auto& [key, tensor] : NumbersOf(*own.optimizer))
      builder_.account.Omit(Fate::kTrainingState, *own.file, *tensor, "optimizer." + key);
    return OkStatus();
  }
  Status LeaveUnshardedOptimizers() {
    for (const auto* files : {&ranks_.models, &expert_files_})
      for (const TorchFile& file : *files)
        if (const PyValue* optimizer = FindKind(file.root(), "optimizer", PyKind::kDict))
          builder_.account.OmitBelow(Fate::kAllowed, file, *optimizer, "optimizer");
    return OkStatus();
  }

  RankSlices& ranks_;
  StoredBuilder& builder_;
  Manifest& manifest_;
  OptimizerFacts facts_;
  std::vector<TorchFile> expert_files_;  // optimizers of expert parallel ranks
};

}  // namespace

void OptimizerFacts::AddGroups(const std::vector<std::vector<std::string>>& more) {
  groups.resize(std::max(groups.size(), more.size()));
  for (size_t g = 0; g < more.size(); ++g) groups[g].insert(groups[g].end(), more[g].begin(), more[g].end());
}

Result<OptimizerFacts> ReadOptimizers(RankSlices& ranks) { return OptimizerReader(ranks).Read(); }

}  // namespace cairn
