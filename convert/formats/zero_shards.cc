#include "convert/formats/zero_shards.h"

#include <algorithm>
#include <array>

#include "convert/formats/group_members.h"
#include "convert/formats/param_groups.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr uint64_t kAlignment = 2;  // a group is padded to a multiple of this times its ranks

// A vector that lies in several tensors.
class FlatVector {
 public:
  Status Append(const ZeroShard& shard, const PyValue* value, const std::string& name) {
    if (!value || !value->is(PyKind::kTensor) || value->tensor->shape.rank() != 1)
      return Corrupt("{}: there is no vector {}", shard.path, name);
    auto array = ArrayOf(shard.contents, *value->tensor, shard.file, name);
    if (!array.ok()) return array.status().WithContext(shard.path);
    if (dtype_ && dtype_ != array->array.dtype)
      return Corrupt("{}: {} is {}, in other shards it is {}", shard.path, name, Name(array->array.dtype),
                     Name(*dtype_));
    dtype_ = array->array.dtype;
    for (const StoredExtent& extent : array->array.extents) {
      extents_.push_back({{size_, size_ + extent.range.size()}, extent.file, extent.file_offset});
      size_ += extent.range.size();
    }
    return OkStatus();
  }
  // Elements that no file has.
  void PadTo(uint64_t size) { size_ = std::max(size_, size); }

  uint64_t size() const { return size_; }
  Dtype dtype() const { return dtype_.value_or(Dtype::kF32); }

  // Appends elements [begin, begin + count) to the array. False where they are not all there.
  bool CopyTo(StoredArray& array, uint64_t begin, uint64_t count) const {
    uint64_t at = array.extents.empty() ? 0 : array.extents.back().range.end;
    auto extent =
        std::ranges::upper_bound(extents_, begin, {}, [](const StoredExtent& e) { return e.range.end; });
    for (; count > 0; ++extent) {
      if (extent == extents_.end() || extent->range.begin > begin) return false;
      const uint64_t here = std::min(count, extent->range.end - begin);
      array.extents.push_back({{at, at + here},
                               extent->file,
                               extent->file_offset + (begin - extent->range.begin) * SizeOf(dtype())});
      at += here;
      begin += here;
      count -= here;
    }
    return true;
  }

 private:
  std::vector<StoredExtent> extents_;
  uint64_t size_ = 0;
  std::optional<Dtype> dtype_;
};

struct Parameter {
  std::string name;
  Dims shape;
  uint64_t begin = 0;  // in the group's flat vector (ZeRO-1, 2) or in a rank's (ZeRO-3)
};

Result<std::vector<Parameter>> ParametersOf(const PyValue& group) {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i + 1 < group.items.size(); i += 2) {
    const auto shape = AsDims(group.items[i + 1]);
    if (!shape || !CheckedBytes(*shape, 4))
      return Corrupt("param_shapes: {} has no shape", KeyText(*group.items[i]));
    parameters.push_back({KeyText(*group.items[i]), *shape});
  }
  return parameters;
}

const PyValue* ItemOf(const PyValue* list, size_t i) {
  return list && (list->is(PyKind::kList) || list->is(PyKind::kTuple)) && i < list->items.size()
             ? list->items[i]
             : nullptr;
}

// The entry of an integer key.
const PyValue* EntryOf(const PyValue* dict, size_t key) {
  for (size_t i = 0; dict && dict->is(PyKind::kDict) && i + 1 < dict->items.size(); i += 2)
    if (AsInt(dict->items[i]) == static_cast<int64_t>(key)) return dict->items[i + 1];
  return nullptr;
}

const PyValue* OptimizerOf(const ZeroShard& shard) {
  return FindKind(shard.contents.root(), "optimizer_state_dict", PyKind::kDict);
}

constexpr std::array<std::pair<Role, const char*>, 3> kRoles = {
    {{Role::kMaster, "fp32"}, {Role::kExpAvg, "exp_avg"}, {Role::kExpAvgSq, "exp_avg_sq"}}};

// What the optimizer itself keeps for a group: its moments and the number of its updates.
const PyValue* GroupState(const PyValue& optimizer, int stage, size_t group) {
  const PyValue* base = Find(optimizer, stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  if (base && base->is(PyKind::kList)) return ItemOf(base, group);  // elastic checkpoints
  return base ? EntryOf(Find(*base, "state"), group) : nullptr;
}

class Zero12 {
 public:
  Zero12(const std::vector<ZeroShard>& shards, const PyValue& param_shapes, ZeroContents& contents)
      : shards_(shards), param_shapes_(param_shapes), contents_(contents) {}

  Status Read() {
    for (size_t g = 0; g < param_shapes_.items.size(); ++g) CAIRN_RETURN_IF_ERROR(ReadGroup(g));
    return OkStatus();
  }

 private:
  Status ReadGroup(size_t g) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<Parameter> parameters, ParametersOf(*param_shapes_.items[g]));
    if (parameters.empty()) return OkStatus();
    const PyValue* first = OptimizerOf(shards_[0]);
    const PyValue* paddings = ItemOf(Find(*first, "param_alignment_paddings"), g);
    uint64_t total = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].begin = total;
      total += parameters[i].shape.Volume();
      const auto padding = AsInt(ItemOf(paddings, i));
      if (padding && *padding > 0) total += static_cast<uint64_t>(*padding);
    }
    // A rank's share; its moments have all of it, its master may lack the padding at the end.
    const uint64_t unit = kAlignment * shards_.size();
    uint64_t share = (total + unit - 1) / unit * unit / shards_.size();
    const PyValue* state = GroupState(*first, 1, g);
    const PyValue* moments = state ? FindKind(*state, "exp_avg", PyKind::kTensor) : nullptr;
    if (moments && moments->tensor->shape.rank() == 1) share = moments->tensor->shape[0];
    if (share * shards_.size() < total)
      return Corrupt("{}: group {} has {} elements on {} ranks, its parameters have {}", shards_[0].path, g,
                     share * shards_.size(), shards_.size(), total);
    CheckMappings(g, parameters, share);
    for (const auto& [role, key] : kRoles) {
      if (role != Role::kMaster && !moments) continue;
      FlatVector flat;
      for (size_t d = 0; d < shards_.size(); ++d) {
        const PyValue& optimizer = *OptimizerOf(shards_[d]);
        const PyValue* group_state = GroupState(optimizer, 1, g);
        const PyValue* value = role == Role::kMaster
                                   ? ItemOf(Find(optimizer, "single_partition_of_fp32_groups"), g)
                               : group_state ? Find(*group_state, key)
                                             : nullptr;
        CAIRN_RETURN_IF_ERROR(flat.Append(shards_[d], value, fmt::format("{} of group {}", key, g)));
        if (flat.size() > share * (d + 1))
          return Corrupt("{}: {} of group {} has more elements than a rank's share, {}", shards_[d].path, key,
                         g, share);
        flat.PadTo(share * (d + 1));
      }
      CAIRN_RETURN_IF_ERROR(AddTensors(parameters, role, flat));
    }
    return OkStatus();
  }

  // DeepSpeed also writes where each parameter is. With round_robin_gradients it writes it for the order in
  // which the parameters were before; the order of param_shapes is then the right one.
  void CheckMappings(size_t g, const std::vector<Parameter>& parameters, uint64_t share) {
    for (size_t d = 0; d < shards_.size(); ++d) {
      const PyValue* mapping = ItemOf(Find(*OptimizerOf(shards_[d]), "param_slice_mappings"), g);
      if (!mapping) continue;
      for (const Parameter& parameter : parameters) {
        const PyValue* fragment = Find(*mapping, parameter.name);
        const uint64_t begin = std::max(parameter.begin, d * share);
        const uint64_t end = std::min(parameter.begin + parameter.shape.Volume(), (d + 1) * share);
        const bool same =
            begin >= end
                ? !fragment
                : fragment && AsInt(Find(*fragment, "start")) == static_cast<int64_t>(begin - d * share) &&
                      AsInt(Find(*fragment, "numel")) == static_cast<int64_t>(end - begin);
        if (same) continue;
        contents_.doubts.push_back(
            fmt::format("param_slice_mappings of data parallel rank {} and param_shapes disagree on {}", d,
                        parameter.name));
        return;
      }
    }
  }

  Status AddTensors(const std::vector<Parameter>& parameters, Role role, const FlatVector& flat) {
    for (const Parameter& parameter : parameters) {
      ZeroTensor tensor{parameter.name, role, {parameter.name, flat.dtype(), parameter.shape, {}}};
      if (!flat.CopyTo(tensor.array, parameter.begin, parameter.shape.Volume()))
        return Corrupt("{}: {} is cut off", shards_.back().path, parameter.name);
      contents_.tensors.push_back(std::move(tensor));
    }
    return OkStatus();
  }

  const std::vector<ZeroShard>& shards_;
  const PyValue& param_shapes_;
  ZeroContents& contents_;
};

// Every parameter is cut into as many pieces as there are ranks, the last one padded, and a rank's vector is
// its pieces one behind the other.
class Zero3 {
 public:
  Zero3(const std::vector<ZeroShard>& shards, const PyValue& param_shapes, ZeroContents& contents)
      : shards_(shards), param_shapes_(param_shapes), contents_(contents) {}

  Status Read() {
    std::vector<Parameter> parameters;
    for (const PyValue* group : param_shapes_.items) {
      CAIRN_ASSIGN_OR_RETURN(std::vector<Parameter> more, ParametersOf(*group));
      parameters.insert(parameters.end(), more.begin(), more.end());
    }
    uint64_t total = 0;
    for (Parameter& parameter : parameters) {
      parameter.begin = total;
      total += PieceOf(parameter);
    }
    for (const auto& [role, key] : kRoles) {
      std::vector<FlatVector> flats(shards_.size());
      bool there = true;
      for (size_t r = 0; r < shards_.size() && there; ++r) {
        CAIRN_ASSIGN_OR_RETURN(there, Gather(shards_[r], role, key, flats[r]));
        if (there && flats[r].size() != total)
          return Corrupt("{}: {} has {} elements, its parameters make it {}", shards_[r].path, key,
                         flats[r].size(), total);
      }
      if (there) CAIRN_RETURN_IF_ERROR(AddTensors(parameters, role, flats));
    }
    return OkStatus();
  }

 private:
  uint64_t PieceOf(const Parameter& parameter) const {
    return (parameter.shape.Volume() + shards_.size() - 1) / shards_.size();
  }

  // All sub-groups of a rank; false where the optimizer keeps no such moments.
  static Result<bool> Gather(const ZeroShard& shard, Role role, const char* key, FlatVector& flat) {
    const PyValue& optimizer = *OptimizerOf(shard);
    const PyValue* masters = FindKind(optimizer, "fp32_flat_groups", PyKind::kList);
    if (!masters) return Corrupt("{}: there are no fp32_flat_groups", shard.path);
    for (size_t g = 0; g < masters->items.size(); ++g) {
      const PyValue* value = masters->items[g];
      if (role != Role::kMaster) {
        const PyValue* state = GroupState(optimizer, 3, g);
        value = state ? Find(*state, key) : nullptr;
        if (!value && g == 0) return false;
      }
      CAIRN_RETURN_IF_ERROR(flat.Append(shard, value, fmt::format("{} of sub-group {}", key, g)));
    }
    return true;
  }

  Status AddTensors(const std::vector<Parameter>& parameters, Role role,
                    const std::vector<FlatVector>& flats) {
    for (const Parameter& parameter : parameters) {
      ZeroTensor tensor{parameter.name, role, {parameter.name, flats[0].dtype(), parameter.shape, {}}};
      uint64_t left = parameter.shape.Volume();
      for (size_t r = 0; r < flats.size() && left > 0; ++r) {
        const uint64_t count = std::min(left, PieceOf(parameter));
        if (!flats[r].CopyTo(tensor.array, parameter.begin, count))
          return Corrupt("{}: {} is cut off", shards_[r].path, parameter.name);
        left -= count;
      }
      contents_.tensors.push_back(std::move(tensor));
    }
    return OkStatus();
  }

  const std::vector<ZeroShard>& shards_;
  const PyValue& param_shapes_;
  ZeroContents& contents_;
};

// 0-based names of DeepSpeed's enum; older versions wrote the number.
int StageOf(const PyValue& optimizer) {
  const PyValue* stage = Find(optimizer, "zero_stage");
  if (!stage) return Find(optimizer, "fp32_flat_groups") ? 3 : 1;
  if (const auto number = AsInt(stage)) return static_cast<int>(*number);
  const PyValue* argument =
      stage->items.empty() ? nullptr : stage->items.back();  // (2), or (enum, 'gradients')
  if (const auto number = AsInt(argument)) return static_cast<int>(*number);
  const std::string_view name = AsText(argument).value_or("");
  return name == "weights" ? 3 : name == "gradients" ? 2 : 1;
}

Status ReadState(FileSystem& fs, const ZeroShard& shard, int stage, nlohmann::json& state) {
  const PyValue& optimizer = *OptimizerOf(shard);
  const PyValue* base = Find(optimizer, stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  if (auto groups = ParamGroupsOf(base ? Find(*base, "param_groups") : nullptr); !groups.empty())
    state["param_groups"] = std::move(groups);
  std::optional<double> step;
  for (size_t g = 0; const PyValue* group = GroupState(optimizer, stage, g); ++g) {
    CAIRN_ASSIGN_OR_RETURN(const auto here, ScalarOf(fs, shard.path, shard.contents, Find(*group, "step")));
    if (step && here && *step != *here)
      return NotSupported("{}: its groups of parameters have had {} and {} updates; one number is read",
                          shard.path, *step, *here);
    if (here) step = here;
  }
  if (step) state["optimizer_step"] = *step;
  // DeepSpeed takes it for its own again, whatever its configuration says.
  if (const auto clip = AsNumber(Find(optimizer, "clip_grad"))) state["clip_grad"] = *clip;
  const PyValue* scaler = Find(optimizer, "loss_scaler");
  const auto dynamic = AsInt(Find(optimizer, "dynamic_loss_scale"));
  if (const auto scale = scaler ? AsNumber(Find(*scaler, "cur_scale")) : std::nullopt) {
    state["loss_scale"] = *scale;
    state["dynamic_loss_scale"] = dynamic.value_or(0) != 0;
  }
  return OkStatus();
}

// Of ZeRO-3 `param_shapes` has sub-groups: of one group all of them, else one of each where there are as
// many.
void AddGroups(const PyValue& param_shapes, size_t ranks, bool round_robin, ZeroContents& contents) {
  const size_t known = contents.state.value("param_groups", nlohmann::json::array()).size();
  for (const PyValue* group : param_shapes.items) {
    std::vector<std::string> names;
    for (size_t i = 0; i + 1 < group->items.size(); i += 2) names.push_back(KeyText(*group->items[i]));
    if (round_robin && contents.stage < 3) names = WithoutRoundRobin(names, ranks);
    if (known == 1 && !contents.groups.empty())
      contents.groups[0].insert(contents.groups[0].end(), names.begin(), names.end());
    else
      contents.groups.push_back(std::move(names));
  }
}

}  // namespace

Result<uint64_t> PartitionCount(const PyValue& root) {
  const PyValue* optimizer = FindKind(root, "optimizer_state_dict", PyKind::kDict);
  const PyValue* count = optimizer ? Find(*optimizer, "partition_count") : nullptr;
  if (count && count->is(PyKind::kList)) count = ItemOf(count, 0);
  const auto number = AsInt(count);
  if (!number || *number < 1 || *number > (1 << 20))
    return Corrupt("it does not say how many ranks share it");
  return static_cast<uint64_t>(*number);
}

Result<ZeroContents> ReadZero(FileSystem& fs, const std::vector<ZeroShard>& shards,
                              const PyValue& param_shapes, bool round_robin) {
  ZeroContents contents;
  for (const ZeroShard& shard : shards)
    if (!OptimizerOf(shard)) return Corrupt("{}: there is no optimizer_state_dict", shard.path);
  const PyValue& optimizer = *OptimizerOf(shards[0]);
  contents.stage = StageOf(optimizer);
  CAIRN_RETURN_IF_ERROR(ReadState(fs, shards[0], contents.stage, contents.state));
  if (!param_shapes.is(PyKind::kList))
    return NotSupported("{}: its model states have no param_shapes; DeepSpeed before 0.3 is not read",
                        shards[0].path);
  AddGroups(param_shapes, shards.size(), round_robin, contents);
  CAIRN_RETURN_IF_ERROR(contents.stage == 3 ? Zero3(shards, param_shapes, contents).Read()
                                            : Zero12(shards, param_shapes, contents).Read());
  return contents;
}

}  // namespace cairn
