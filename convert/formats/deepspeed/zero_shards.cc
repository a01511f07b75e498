// Flat vectors are never built: an array lists stretches of files, and a parameter is a range of it.
// ZeRO-1 and 2: the shares of all ranks, one after another, are the vector of a group, in which
// parameters lie in the order of param_shapes. A group of experts has as many vectors as there are expert
// parallel ranks; param_shapes has the first one's names. ZeRO-3: each parameter is cut over all ranks, and
// a rank's vector is its pieces. Elements between parameters are alignment, and are declared, so that the
// account adds up. If DeepSpeed's own mappings contradict that order, a doubt is noted; the caller settles it
// by comparing masters with weights.

#include "convert/formats/deepspeed/zero_shards.h"

#include <algorithm>

#include "convert/formats/deepspeed/zero_file.h"
#include "convert/formats/megatron_model/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/formats/training/param_groups.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr uint64_t kGroupAlignment = 2;  // a group is padded to a multiple of this times its ranks

// Appends a shard's vector to `flat`. Elements between extents are in no file.
Status AppendVector(const TorchFile& shard, const TensorRef* tensor, const std::string& name,
                    StoredBuilder& builder, StoredArray& flat) {
  if (!tensor || tensor->shape.rank() != 1) return Corrupt("{}: vector {} is missing", shard.path(), name);
  auto array = builder.ArrayIn(shard, *tensor, name);
  if (!array.ok()) return array.status().WithContext(shard.path());
  if (!flat.name.empty() && flat.dtype != array->dtype)
    return Corrupt("{}: {} is {}, but {} in other shards", shard.path(), name, Name(array->dtype),
                   Name(flat.dtype));
  const uint64_t begin = flat.name.empty() ? 0 : flat.shape[0];
  Append(flat, *array, begin);
  flat.name = name;
  flat.dtype = array->dtype;
  flat.shape = {begin + array->shape[0]};
  return OkStatus();
}

struct Parameter {
  std::string name;
  Dims shape;
  uint64_t begin = 0;  // in the group's flat vector (ZeRO-1, 2) or in a rank's (ZeRO-3)
  size_t group = 0;    // with ZeRO-3 the sub-group in which it begins
};

Result<std::vector<Parameter>> FlatParameters(const PyValue& group) {
  std::vector<Parameter> parameters;
  for (const auto& [name, shape] : ShapesIn(&group)) {
    if (!shape || !CheckedBytes(*shape, 4)) return Corrupt("param_shapes: {} has no shape", name);
    parameters.push_back({name, *shape});
  }
  return parameters;
}

const TensorRef* TensorIn(const PyValue* value) {
  return value && value->is(PyKind::kTensor) ? value->tensor : nullptr;
}

const TensorRef* StateOf(const OptimizerStates& states, Role role) {
  for (const auto& [known, tensor] : states.tensors)
    if (known == role) return tensor;
  return nullptr;
}

// Reads all shards. ZeRO-1 and 2: the functions of groups; ZeRO-3: those of pieces.
class ZeroReader {
 public:
  ZeroReader(RankSlices& ranks, const std::vector<TorchFile>& shards, const PyValue& param_shapes,
             bool masters_alone, ZeroContents& contents)
      : param_shapes_(param_shapes),
        stage_(contents.stage),
        masters_alone_(masters_alone),
        in_blocks_(IsConfigured(ranks.root(), "use_data_before_expert_parallelism")),
        round_robin_(MegatronState(ranks.root()).contains("round_robin_gradients")),
        experts_(ranks.files.experts.empty() ? ExpertCounts() : ExpertsByMixture(ranks)),
        builder_(ranks.builder),
        contents_(contents) {
    for (const TorchFile& shard : shards) shards_.push_back(&shard);
  }

  Status Read() {
    if (stage_ == 3) return ReadPieces();
    CAIRN_RETURN_IF_ERROR(CheckNames());
    std::vector<std::string> names;
    for (const PyValue* group : param_shapes_.items)
      for (const NamedShape& parameter : ShapesIn(group)) names.push_back(parameter.name);
    own_experts_ = ExpertsByMixture(names);
    CAIRN_ASSIGN_OR_RETURN(const auto counts, PartitionCounts(*shards_[0]));
    const std::vector<const TorchFile*> all = shards_;
    contents_.groups.resize(param_shapes_.items.size());
    for (size_t g = 0; g < param_shapes_.items.size(); ++g) {
      const size_t count = counts[std::min(g, counts.size() - 1)], size = all.size() / count;
      for (size_t r = 0; r < size; ++r) {
        shards_.clear();
        for (size_t d = 0; d < count; ++d) shards_.push_back(all[in_blocks_ ? r * count + d : d * size + r]);
        CAIRN_RETURN_IF_ERROR(ReadGroup(g, r, size));
      }
    }
    return OkStatus();
  }

 private:
  // Errors: NotSupported naming a state that is not a number, and not of the group's vector.
  Result<OptimizerStates> States(size_t shard, size_t group) const {
    const PyValue* state = GroupState(*ZeroOptimizerOf(*shards_[shard]), stage_, group);
    if (!state || masters_alone_) return OptimizerStates();
    auto states = StatesOf(*state, fmt::format("group {}", group));
    if (!states.ok()) return states.status().WithContext(shards_[shard]->path());
    const TensorRef* vector = nullptr;  // as long as those of all states
    for (const auto& [role, tensor] : states->tensors) {
      if (IsNumber(*tensor)) continue;
      if (!vector) vector = tensor;
      if (tensor->shape.rank() != 1 || tensor->shape != vector->shape)
        return NotSupported("{}: {} of {} has shape {}, which no parameter has a part of",
                            shards_[shard]->path(), Name(role), GroupName(group), ToString(tensor->shape));
    }
    return states;
  }

  // Appends a rank's vector of a group (ZeRO-3: sub-group) to `flat`.
  Status AppendRole(size_t rank, size_t group, Role role, std::string_view key, StoredArray& flat) const {
    const TorchFile& shard = *shards_[rank];
    const char* masters = stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const TensorRef* value = TensorIn(ItemOf(Find(*ZeroOptimizerOf(shard), masters), group));
    if (role != Role::kMaster) {
      CAIRN_ASSIGN_OR_RETURN(const OptimizerStates states, States(rank, group));
      value = StateOf(states, role);
    }
    return AppendVector(shard, value, fmt::format("{} of {}", key, GroupName(group)), builder_, flat);
  }

  // One number for all parameters of a group, so that each has it.
  Status ReadNumbers(Role role, const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters) {
      CAIRN_ASSIGN_OR_RETURN(const OptimizerStates states, States(0, parameter.group));
      const TensorRef* number = role == Role::kStep ? TensorIn(states.step) : StateOf(states, role);
      if (!number || (role != Role::kStep && !IsNumber(*number)))
        return NotSupported("{}: {} has no {}, or more than one number in it", shards_[0]->path(),
                            GroupName(parameter.group), Name(role));
      auto array = builder_.ArrayIn(*shards_[0], *number, parameter.name);
      if (!array.ok()) return array.status().WithContext(shards_[0]->path());
      contents_.tensors.emplace_back(role, *std::move(array));
    }
    return OkStatus();
  }

  // Masters and states that are vectors by `read`, and numbers.
  template <typename ReadVector>
  Status ReadRoles(const OptimizerStates& states, const std::vector<Parameter>& parameters,
                   const ReadVector& read) {
    CAIRN_RETURN_IF_ERROR(read(Role::kMaster, "fp32"));
    for (const auto& [role, tensor] : states.tensors)
      CAIRN_RETURN_IF_ERROR(IsNumber(*tensor) ? ReadNumbers(role, parameters) : read(role, Name(role)));
    return contents_.steps_differ ? ReadNumbers(Role::kStep, parameters) : OkStatus();
  }

  std::string GroupName(size_t group) const {
    return fmt::format("{}group {}", stage_ == 3 ? "sub-" : "", group);
  }

  void LeaveAlignment(const StoredArray& flat, std::string_view key, uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    contents_.alignment.push_back(StretchOf(flat, begin, {end - begin}));
    contents_.alignment.back().name = fmt::format("alignment of {}", key);
  }

  // ---- ZeRO-1 and 2.

  // Every parameter that the optimizer has a place for must have a shape, or its elements would count as
  // alignment.
  Status CheckNames() const {
    for (const TorchFile* shard : shards_) {
      const PyValue* mappings = Find(*ZeroOptimizerOf(*shard), "param_slice_mappings");
      for (size_t g = 0; const PyValue* mapping = ItemOf(mappings, g); ++g)
        for (size_t i = 0; mapping->is(PyKind::kDict) && i + 1 < mapping->items.size(); i += 2) {
          const PyValue* shapes = ItemOf(&param_shapes_, g);
          const std::string name = KeyText(*mapping->items[i]);
          if (!shapes || !Find(*shapes, name))
            return Corrupt("{}: {} is in group {} but not in param_shapes", shard->path(), name, g);
        }
    }
    return OkStatus();
  }

  // `rank`: of `size` expert parallel ranks, if the group is of experts.
  Status ReadGroup(size_t g, size_t rank, size_t size) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<Parameter> parameters, FlatParameters(*param_shapes_.items[g]));
    if (parameters.empty()) return OkStatus();
    const PyValue* first = ZeroOptimizerOf(*shards_[0]);
    const PyValue* paddings = ItemOf(Find(*first, "param_alignment_paddings"), g);
    std::vector<std::pair<uint64_t, uint64_t>> aligned;  // stretches between parameters
    uint64_t total = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].begin = total;
      parameters[i].group = g;
      total += parameters[i].shape.Volume();
      const auto padding = AsInt(ItemOf(paddings, i));
      if (!padding || *padding <= 0) continue;
      aligned.emplace_back(total, total + static_cast<uint64_t>(*padding));
      total = aligned.back().second;
    }
    // A rank's share; its moments have all of it, its master may lack the padding at the end.
    const uint64_t unit = kGroupAlignment * shards_.size();
    uint64_t share = (total + unit - 1) / unit * unit / shards_.size();
    CAIRN_ASSIGN_OR_RETURN(const OptimizerStates states, States(0, g));
    const TensorRef* master = TensorIn(ItemOf(Find(*first, "single_partition_of_fp32_groups"), g));
    for (const auto& [role, tensor] : states.tensors) {
      if (IsNumber(*tensor)) continue;
      share = tensor->shape[0];
      const uint64_t least = master && master->shape.rank() == 1 ? master->shape[0] : share;
      if (share < least || share - least >= unit)  // as newer versions keep Muon's, each parameter whole
        return NotSupported("{}: {} of {} has {} elements, and its masters {}", shards_[0]->path(),
                            Name(role), GroupName(g), share, least);
    }
    if (share * shards_.size() < total)
      return Corrupt("{}: group {} has {} elements on {} ranks, but its parameters have {}",
                     shards_[0]->path(), g, share * shards_.size(), shards_.size(), total);
    aligned.emplace_back(total, share * shards_.size());
    CheckMappings(g, parameters, share);
    CAIRN_RETURN_IF_ERROR(NameParameters(g, rank, size, parameters));
    return ReadRoles(states, parameters, [&](Role role, std::string_view key) {
      return ReadRoleOfGroup(g, role, key, parameters, share, aligned);
    });
  }

  Status NameParameters(size_t g, size_t rank, size_t size, std::vector<Parameter>& parameters) {
    std::vector<std::string> names;
    for (Parameter& parameter : parameters) {
      if (size > 1 || IsOfExpert(parameter.name)) {
        auto name = NameOverRanks(parameter.name, own_experts_, experts_, rank, size);
        if (!name.ok()) return name.status().WithContext(shards_[0]->path());
        parameter.name = *std::move(name);
      }
      names.push_back(parameter.name);
    }
    if (round_robin_) names = WithoutRoundRobin(names, shards_.size());
    auto& group = contents_.groups[g];
    group.insert(group.end(), names.begin(), names.end());
    return OkStatus();
  }

  Status ReadRoleOfGroup(size_t g, Role role, std::string_view key, const std::vector<Parameter>& parameters,
                         uint64_t share, const std::vector<std::pair<uint64_t, uint64_t>>& aligned) {
    StoredArray flat;
    for (size_t d = 0; d < shards_.size(); ++d) {
      CAIRN_RETURN_IF_ERROR(AppendRole(d, g, role, key, flat));
      if (flat.shape[0] > share * (d + 1))
        return Corrupt("{}: {} of group {} has more elements than a rank's share, {}", shards_[d]->path(),
                       key, g, share);
      flat.shape = {share * (d + 1)};
    }
    for (const auto& [begin, end] : aligned) LeaveAlignment(flat, key, begin, end);
    for (const Parameter& parameter : parameters) {
      StoredArray tensor = StretchOf(flat, parameter.begin, parameter.shape);
      tensor.name = parameter.name;
      if (tensor.elements() != parameter.shape.Volume())
        return Corrupt("{}: {} is cut off", shards_.back()->path(), parameter.name);
      contents_.tensors.emplace_back(role, std::move(tensor));
    }
    return OkStatus();
  }

  // DeepSpeed also writes where each parameter is. With round_robin_gradients it writes it for the order in
  // which the parameters were before; the order of param_shapes is then the right one.
  void CheckMappings(size_t g, const std::vector<Parameter>& parameters, uint64_t share) {
    for (size_t d = 0; d < shards_.size(); ++d) {
      const PyValue* mapping = ItemOf(Find(*ZeroOptimizerOf(*shards_[d]), "param_slice_mappings"), g);
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

  // ---- ZeRO-3: every parameter is cut into as many pieces as there are ranks, the last one padded, and a
  // rank's vector is its pieces one after another.

  Status ReadPieces() {
    std::vector<Parameter> parameters;
    for (const PyValue* group : param_shapes_.items) {
      CAIRN_ASSIGN_OR_RETURN(std::vector<Parameter> more, FlatParameters(*group));
      parameters.insert(parameters.end(), more.begin(), more.end());
    }
    CAIRN_ASSIGN_OR_RETURN(const PyValue* masters, MastersOf(*shards_[0]));
    size_t groups = 0;
    uint64_t total = 0, end = 0;  // `end`: of the first `groups` sub-groups
    for (Parameter& parameter : parameters) {
      for (; groups < masters->items.size() && total >= end; ++groups)
        if (const TensorRef* master = TensorIn(masters->items[groups])) end += master->shape.Volume();
      parameter.begin = total;
      parameter.group = std::max<size_t>(groups, 1) - 1;
      total += PieceOf(parameter);
    }
    CAIRN_ASSIGN_OR_RETURN(const OptimizerStates states, States(0, 0));
    return ReadRoles(states, parameters, [&](Role role, std::string_view key) {
      return ReadRoleOfPieces(role, key, parameters, total);
    });
  }

  uint64_t PieceOf(const Parameter& parameter) const {
    return (parameter.shape.Volume() + shards_.size() - 1) / shards_.size();
  }

  Result<const PyValue*> MastersOf(const TorchFile& shard) const {
    const PyValue* masters = FindKind(*ZeroOptimizerOf(shard), "fp32_flat_groups", PyKind::kList);
    if (!masters) return Corrupt("{}: fp32_flat_groups are missing", shard.path());
    return masters;
  }

  Status ReadRoleOfPieces(Role role, std::string_view key, const std::vector<Parameter>& parameters,
                          uint64_t total) {
    std::vector<StoredArray> flats(shards_.size());
    for (size_t r = 0; r < shards_.size(); ++r) {
      CAIRN_ASSIGN_OR_RETURN(const PyValue* masters, MastersOf(*shards_[r]));
      for (size_t g = 0; g < masters->items.size(); ++g)
        CAIRN_RETURN_IF_ERROR(AppendRole(r, g, role, key, flats[r]));
      const uint64_t elements = flats[r].name.empty() ? 0 : flats[r].shape[0];
      if (elements != total)
        return Corrupt("{}: {} has {} elements, but its parameters have {}", shards_[r]->path(), key,
                       elements, total);
    }
    return JoinPieces(parameters, role, key, flats);
  }

  Status JoinPieces(const std::vector<Parameter>& parameters, Role role, std::string_view key,
                    const std::vector<StoredArray>& flats) {
    for (const Parameter& parameter : parameters) {
      StoredArray tensor{parameter.name, flats[0].dtype, parameter.shape};
      const uint64_t volume = parameter.shape.Volume(), piece = PieceOf(parameter);
      for (size_t r = 0; r < flats.size(); ++r) {
        const uint64_t done = std::min(volume, r * piece), count = std::min(volume - done, piece);
        const StoredArray part = StretchOf(flats[r], parameter.begin, {count});
        if (part.elements() != count) return Corrupt("{}: {} is cut off", shards_[r]->path(), parameter.name);
        Append(tensor, part, done);
        LeaveAlignment(flats[r], key, parameter.begin + count, parameter.begin + piece);
      }
      contents_.tensors.emplace_back(role, std::move(tensor));
    }
    return OkStatus();
  }

  std::vector<const TorchFile*> shards_;  // those that share the group that is read; ZeRO-3: all
  const PyValue& param_shapes_;
  const int stage_;
  const bool masters_alone_;
  const bool in_blocks_;  // neighbours hold the same experts
  const bool round_robin_;
  const ExpertCounts experts_;
  ExpertCounts own_experts_;  // of one expert parallel rank
  StoredBuilder& builder_;
  ZeroContents& contents_;
};

// The sub-groups of ZeRO-3 belong to one group if there is one, else each is a group.
void AddSubGroups(const PyValue& param_shapes, ZeroContents& contents) {
  const size_t known = contents.state.value("param_groups", nlohmann::json::array()).size();
  for (const PyValue* group : param_shapes.items) {
    std::vector<std::string> names;
    for (const NamedShape& parameter : ShapesIn(group)) names.push_back(parameter.name);
    if (known == 1 && !contents.groups.empty())
      contents.groups[0].insert(contents.groups[0].end(), names.begin(), names.end());
    else
      contents.groups.push_back(std::move(names));
  }
}

}  // namespace

Result<ZeroContents> ReadZero(RankSlices& ranks, size_t rank, const std::vector<TorchFile>& shards,
                              bool masters_alone) {
  ZeroContents contents;
  for (const TorchFile& shard : shards)
    if (!ZeroOptimizerOf(shard)) return Corrupt("{}: optimizer_state_dict is missing", shard.path());
  const TorchFile& model = ranks.models[rank];
  const PyValue* shapes = FindKind(model.root(), "param_shapes", PyKind::kList);
  if (!shapes)
    return NotSupported("{}: it does not contain param_shapes as DeepSpeed writes them since 0.3",
                        model.path());
  contents.stage = ZeroStageOf(*ZeroOptimizerOf(shards[0]));
  contents.state = ZeroState(*ZeroOptimizerOf(shards[0]), contents.stage);
  if (contents.stage == 3) AddSubGroups(*shapes, contents);
  if (masters_alone) {
    contents.state.erase("param_groups");
  } else {
    CAIRN_ASSIGN_OR_RETURN(const std::set<double> steps, ZeroSteps(ranks.fs, shards[0], contents.stage));
    if (steps.size() == 1) contents.state["optimizer_step"] = *steps.begin();
    contents.steps_differ = steps.size() > 1;
  }
  CAIRN_RETURN_IF_ERROR(ZeroReader(ranks, shards, *shapes, masters_alone, contents).Read());
  return contents;
}

}  // namespace cairn
