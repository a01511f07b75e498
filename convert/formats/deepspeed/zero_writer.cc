// The cut comes first: with ZeRO 1 and 2 a group's parameters are one vector, of which each rank has an
// equal share; with ZeRO 3 each parameter is cut over the ranks, and pieces fill sub-groups. Then the pickle
// of each rank is emitted, which gives every vector a storage for each role. Last, each parameter becomes one
// array per role, whose extents are in those storages. So blocks of a parameter go straight to their shards,
// and no flat vector is in memory.

#include "convert/formats/deepspeed/zero_writer.h"

#include <algorithm>
#include <map>

namespace cairn {
namespace {

constexpr uint64_t kSubGroupElements =
    1'000'000'000;  // ZeRO-3's sub_group_size by default, of a rank's share
constexpr std::string_view kScaler = "deepspeed.runtime.fp16.loss_scaler";

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// A flat vector over all ranks: one array per parameter, whose extents are in the ranks' storages.
class ShardPlanner {
 public:
  ShardPlanner(const ZeroJob& job, const std::vector<LocalTensor>& held, int rank, TargetBuilder& builder)
      : job_(job), held_(held), builder_(builder), groups_(GroupsOf(job, held)), ranks_(job.topology.dp) {
    const bool bf16 = job.tensors.weight_type() == Dtype::kBF16;
    for (uint64_t d = 0; d < ranks_; ++d)
      zips_.push_back(builder.BeginTorchFile(fmt::format("{}/{}zero_pp_rank_{}_mp_rank_{:02}_optim_states.pt",
                                                         job.directory, bf16 ? "bf16_" : "", d, rank)));
  }

  void Add() {
    if (job_.topology.zero == 3)
      CutParameters();
    else
      CutGroups();
    for (uint64_t d = 0; d < ranks_; ++d) Emit(d);
    AddArrays();
  }

 private:
  // A vector of the optimizer: a group, or a sub-group of ZeRO-3.
  struct Vector {
    size_t group = 0;
    std::vector<size_t> tensors;   // into held_
    std::vector<uint64_t> begins;  // of each: in the whole (ZeRO-1, 2) or in each rank's share (ZeRO-3)
    uint64_t elements = 0;         // of the tensors, without padding (ZeRO-1, 2)
    uint64_t share = 0;            // of a rank
    std::map<Role, std::vector<uint32_t>> storages = {};  // of each role, by rank
  };

  void CutGroups() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      Vector vector{.group = g, .tensors = groups_[g], .begins = {}};
      for (const size_t i : vector.tensors) {
        vector.begins.push_back(vector.elements);
        vector.elements += held_[i].shape.Volume();
      }
      vector.share = RoundUp(vector.elements, 2 * ranks_) / ranks_;
      vectors_.push_back(std::move(vector));
    }
  }

  uint64_t PieceOf(size_t tensor) const { return (held_[tensor].shape.Volume() + ranks_ - 1) / ranks_; }

  void CutParameters() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      bool full = true;
      for (const size_t i : groups_[g]) {
        if (std::exchange(full, false)) vectors_.push_back({.group = g, .tensors = {}, .begins = {}});
        Vector& vector = vectors_.back();
        vector.tensors.push_back(i);
        vector.begins.push_back(vector.share);
        vector.share += PieceOf(i);
        full = vector.share >= kSubGroupElements;
      }
    }
  }

  // ---- The pickle of rank d.

  // All of a group have the same; an empty one has those of others.
  std::vector<Role> RolesOf(const Vector& vector) const {
    const auto& parameters = job_.tensors.parameters;
    if (!vector.tensors.empty()) return parameters[held_[vector.tensors[0]].parts[0].parameter].roles();
    return std::ranges::find_if(parameters, &TrainingParameter::has_state)->roles();
  }

  void EmitVector(uint64_t d, Vector& vector, Role role) {
    vector.storages[role].push_back(builder_.EmitTensor(zips_[d], Dtype::kF32, {vector.share}));
  }

  void EmitMoments(uint64_t d) {
    PickleEmitter& p = builder_.pickle(zips_[d]);
    p.BeginDict();
    p.Text("state");
    p.BeginDict();
    for (size_t v = 0; v < vectors_.size(); ++v) {
      p.Int(static_cast<int64_t>(v));
      p.BeginDict();
      p.Text("step");
      builder_.EmitScalar(zips_[d], static_cast<float>(job_.state.optimizer_step));
      for (const Role& role : RolesOf(vectors_[v])) {
        p.Text(kZeroPlaces.NameOf(role));
        EmitVector(d, vectors_[v], role);
      }
      p.EndDict();
    }
    p.EndDict();
    p.Text("param_groups");
    p.BeginList();
    for (size_t g = 0; g < groups_.size(); ++g) {
      std::vector<size_t> params;
      for (size_t v = 0; v < vectors_.size(); ++v)
        if (vectors_[v].group == g) params.push_back(v);
      EmitParamGroup(p, job_.state, g, params);
    }
    p.EndList();
    p.EndDict();
  }

  void EmitMasters(uint64_t d) {
    PickleEmitter& p = builder_.pickle(zips_[d]);
    p.BeginList();
    for (Vector& vector : vectors_) EmitVector(d, vector, Role::kMaster);
    p.EndList();
  }

  void Emit(uint64_t d) {
    PickleEmitter& p = builder_.pickle(zips_[d]);
    p.BeginDict();
    p.Text("optimizer_state_dict");
    p.BeginDict();
    EmitLossScale(p, job_.state);
    job_.topology.zero == 3 ? EmitZero3(d, p) : EmitZero12(d, p);
    p.EndDict();
    p.Text("ds_config");
    p.Json({{"zero_optimization", {{"stage", job_.topology.zero}}}});
    p.Entry("ds_version", kDeepSpeedVersion);
    p.EndDict();
  }

  void EmitZero3(uint64_t d, PickleEmitter& p) {
    p.Text("zero_stage");
    EmitZeroStage(p, 3);
    p.Entry("partition_count", ranks_);
    p.Text("optimizer_state_dict");
    EmitMoments(d);
    p.Text("fp32_flat_groups");
    EmitMasters(d);
  }

  void EmitZero12(uint64_t d, PickleEmitter& p) {
    if (job_.state.clip_grad) p.Entry("clip_grad", *job_.state.clip_grad);  // else the configuration's counts
    p.Text("base_optimizer_state");
    EmitMoments(d);
    p.Text("single_partition_of_fp32_groups");
    EmitMasters(d);
    p.Text("zero_stage");
    EmitZeroStage(p, job_.topology.zero);
    nlohmann::json paddings = nlohmann::json::array(), aligned = nlohmann::json::array();
    for (const Vector& vector : vectors_) {
      const uint64_t end = std::clamp(vector.elements, d * vector.share, (d + 1) * vector.share);
      paddings.push_back((d + 1) * vector.share - end);
      aligned.push_back(std::vector<int>(vector.tensors.size(), 0));
    }
    p.Entry("group_paddings", paddings);
    p.Entry("param_alignment_paddings", aligned);
    p.Entry("partition_count", std::vector<uint64_t>(vectors_.size(), ranks_));
    p.Entry("ds_version", kDeepSpeedVersion);
    p.Text("param_slice_mappings");
    EmitMappings(d, p);
  }

  void EmitMappings(uint64_t d, PickleEmitter& p) {
    p.BeginList();
    for (const Vector& vector : vectors_) {
      p.BeginOrderedDict();
      for (size_t i = 0; i < vector.tensors.size(); ++i) {
        const LocalTensor& tensor = held_[vector.tensors[i]];
        const uint64_t begin = std::max(vector.begins[i], d * vector.share);
        const uint64_t end = std::min(vector.begins[i] + tensor.shape.Volume(), (d + 1) * vector.share);
        if (begin >= end) continue;
        p.Text(tensor.name);
        p.BeginObject("deepspeed.utils.tensor_fragment", "fragment_address");
        p.Json({{"numel", end - begin}, {"start", begin - d * vector.share}});
        p.EndObject();
      }
      p.EndDict();
    }
    p.EndList();
  }

  // ---- Where each parameter lies.

  void AddArrays() {
    for (const Vector& vector : vectors_)
      for (size_t i = 0; i < vector.tensors.size(); ++i)
        for (const auto& [role, storages] : vector.storages) {
          const LocalTensor& local = held_[vector.tensors[i]];
          StoredArray array{local.name, Dtype::kF32, local.shape, ExtentsOf(vector, i, storages)};
          AddParts(job_.tensors, local, role, builder_.AddArray(std::move(array)), builder_.target);
        }
  }

  // `storages`: of each rank.
  std::vector<StoredExtent> ExtentsOf(const Vector& vector, size_t i,
                                      const std::vector<uint32_t>& storages) const {
    std::vector<StoredExtent> extents;
    const uint64_t volume = held_[vector.tensors[i]].shape.Volume(), begin = vector.begins[i];
    const uint64_t piece = PieceOf(vector.tensors[i]);
    for (uint64_t d = 0; d < ranks_; ++d) {
      const bool zero3 = job_.topology.zero == 3;
      const uint64_t share = d * vector.share;
      const uint64_t from = zero3 ? std::min(volume, d * piece) : std::max(begin, share) - begin;
      const uint64_t to = zero3 ? std::min(volume, (d + 1) * piece)
                                : std::min(begin + volume, std::max(begin, share + vector.share)) - begin;
      if (from >= to) continue;
      const uint64_t first = zero3 ? begin : begin + from - share;
      extents.push_back({{from, to}, storages[d], first * sizeof(float)});
    }
    return extents;
  }

  const ZeroJob& job_;
  const std::vector<LocalTensor>& held_;
  TargetBuilder& builder_;
  const std::vector<std::vector<size_t>> groups_;
  const uint64_t ranks_;
  std::vector<uint32_t> zips_;  // of each rank
  std::vector<Vector> vectors_;
};

}  // namespace

std::vector<std::vector<size_t>> GroupsOf(const ZeroJob& job, const std::vector<LocalTensor>& held) {
  const OptimizerGroups& known = job.state.groups;
  const auto parameter = [&](size_t i) -> const TrainingParameter& {
    return job.tensors.parameters[held[i].parts[0].parameter];
  };
  std::vector<std::vector<size_t>> groups(known.size());
  for (size_t i = 0; i < held.size(); ++i)
    if (parameter(i).has_state()) groups[known.GroupOf(parameter(i).spec.name)].push_back(i);  // else frozen
  for (std::vector<size_t>& group : groups) {
    if (job.source_order)
      std::ranges::stable_sort(group, {},
                               [&](size_t i) { return known.place.at(parameter(i).spec.name).index; });
    if (job.round_robin) group = RoundRobin(group, static_cast<size_t>(job.topology.dp));
  }
  return groups;
}

// stage_1_and_2.py, _round_robin_reorder: the parameters of each rank in turn, the first rank's first.
std::vector<size_t> RoundRobin(const std::vector<size_t>& order, size_t ranks) {
  std::vector<size_t> reordered;
  for (size_t rank = 0; rank < ranks; ++rank)
    for (size_t i = rank; i < order.size(); i += ranks) reordered.push_back(order[i]);
  return reordered;
}

void EmitParamShapes(PickleEmitter& pickle, const std::vector<std::vector<size_t>>& groups,
                     const std::vector<LocalTensor>& held) {
  pickle.BeginList();
  for (const std::vector<size_t>& group : groups) {
    pickle.BeginOrderedDict();
    for (const size_t i : group) {
      pickle.Text(held[i].name);
      pickle.TorchSize(held[i].shape);
    }
    pickle.EndDict();
  }
  pickle.EndList();
}

void EmitLossScale(PickleEmitter& pickle, const TrainingState& state) {
  const double scale = state.loss_scale > 0 ? state.loss_scale : 1.0;
  pickle.Text("loss_scaler");
  pickle.BeginObject(kScaler, state.dynamic_loss_scale ? "DynamicLossScaler" : "LossScaler");
  pickle.BeginDict();
  pickle.Entry("cur_scale", scale);
  pickle.Entry("dynamic", state.dynamic_loss_scale);
  if (state.dynamic_loss_scale) {  // DeepSpeed's defaults, and no overflow yet
    const nlohmann::json rest = {{"cur_iter", state.iteration},
                                 {"last_overflow_iter", -1},
                                 {"scale_factor", 2.0},
                                 {"scale_window", 1000},
                                 {"min_scale", 1.0},
                                 {"delayed_shift", 1},
                                 {"cur_hysteresis", 1},
                                 {"consecutive_hysteresis", false},
                                 {"raise_error_at_min_scale", true}};
    for (const auto& [key, value] : rest.items()) pickle.Entry(key, value);
    pickle.Text("dtype");
    pickle.TorchDtype(Dtype::kF16);
  }
  pickle.EndDict();
  pickle.EndObject();
  pickle.Entry("dynamic_loss_scale", state.dynamic_loss_scale);
  pickle.Entry("overflow", false);
}

void EmitZeroStage(PickleEmitter& pickle, int stage) {
  pickle.Global("deepspeed.runtime.zero.config", "ZeroStageEnum");
  pickle.BeginTuple();
  pickle.Int(stage);
  pickle.EndTuple();
  pickle.Reduce();
}

void AddZeroShards(const ZeroJob& job, const std::vector<LocalTensor>& held, int rank,
                   TargetBuilder& builder) {
  ShardPlanner(job, held, rank, builder).Add();
}

}  // namespace cairn
