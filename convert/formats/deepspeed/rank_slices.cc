// The slices are joined by Megatron's modules, by patterns of names, or as they are.

#include "convert/formats/deepspeed/rank_slices.h"

#include <algorithm>
#include <set>

#include "convert/formats/deepspeed/slice_patterns.h"
#include "convert/formats/megatron_model/megatron_model.h"
#include "convert/formats/megatron_model/megatron_sizes.h"
#include "convert/formats/megatron_model/megatron_state.h"

namespace cairn {
namespace {

using Places = std::set<std::pair<int, std::string>>;  // layer and name

MegatronShapes ShapesOfFirstRank(const RankSlices& ranks) {
  MegatronShapes shapes;
  for (const RankSlice& slice : ranks.slices)
    if (slice.tp == 0 && slice.tensor.shape.rank() > 0)
      shapes.try_emplace({slice.place.layer, slice.place.name}, slice.tensor.shape);
  return shapes;
}

void TrimVocabulary(RankSlices& ranks, MegatronShape& shape) {
  uint64_t padded = 0;
  for (const RankSlice& slice : ranks.slices)
    if (slice.place.name == "word_embeddings.weight" && slice.is_weight())
      padded = slice.tensor.shape[0] * static_cast<uint64_t>(ranks.layers.tp);
  const uint64_t vocab =
      ranks.options.vocab_size > 0 ? ranks.options.vocab_size : OriginalVocabulary(ranks.root());
  if (vocab > 0 && vocab <= padded)
    shape.vocab = static_cast<int64_t>(vocab);
  else if (std::cmp_equal(shape.vocab, padded))
    ranks.manifest.history.push_back(
        fmt::format("the vocabulary of {} rows may have padding; no file has its true size", padded));
}

Status JoinMegatron(RankSlices& ranks) {
  const PyValue* args = Find(ranks.root(), "args");
  if (!args)
    return ranks.Fail(ranks.models[0].name(),
                      NotSupported("it does not contain args, which describe the model"));
  const double version = AsNumber(Find(ranks.root(), "checkpoint_version")).value_or(3);
  const auto shown = SizesShown(*args, ShapesOfFirstRank(ranks), ranks.layers.tp);
  if (!shown.ok()) return ranks.Fail(ranks.models[0].name(), shown.status());
  const bool tied =
      std::ranges::none_of(ranks.slices, [](const RankSlice& slice) { return IsHead(slice.place.name); });
  auto read = ReadMegatronArgs(*args, version, tied, ranks.options, *shown);
  if (!read.ok()) return ranks.Fail(ranks.models[0].name(), read.status());
  MegatronShape& shape = read->shape;
  TrimVocabulary(ranks, shape);
  ranks.manifest.model = std::move(read->model);
  ranks.manifest.model.vocab_size = shape.vocab;
  ranks.manifest.topology.tp = ranks.layers.tp;
  ranks.manifest.topology.pp = static_cast<int>(ranks.models.size()) / ranks.layers.tp;
  MegatronAssembler assembler(shape, ranks.layers.tp, ranks.builder);
  for (const RankSlice& slice : ranks.slices) {
    const Dims shape = slice.tensor.shape;
    CAIRN_RETURN_IF_ERROR(assembler
                              .Add({slice.place.name, slice.place.layer, slice.tp, slice.role, slice.tensor,
                                    shape, Box::Whole(shape)})
                              .WithContext(ranks.directory()));
  }
  return OkStatus();
}

// The shape of the whole, and the box of the slice in it: two boxes if two parameters lie in one.
Result<SliceLayout> LayoutOf(const RankSlices& ranks, const SlicePatterns& patterns, const RankSlice& slice,
                             bool buffer) {
  const std::string& name = slice.place.name;
  const Dims shape = slice.tensor.tensor_shape();
  const Topology topology{.tp = ranks.layers.tp};
  SlicePatterns::Found found{SliceRule::kReplicated};
  if (topology.tp > 1 && !patterns.any())
    return NotSupported(
        "the checkpoint does not record how {} is cut over {} tensor parallel ranks: its names are not "
        "Megatron's, and its model states have no universal_checkpoint_info",
        name, topology.tp);
  if (topology.tp > 1 && shape.rank() > 0) {
    CAIRN_ASSIGN_OR_RETURN(found, patterns.RuleOf(name, buffer));
  }
  if (found.map) {
    Result<SliceLayout> layout = LayoutInMap(*found.map, slice.tp, shape);
    return layout.ok() ? std::move(layout) : layout.status().WithContext(name);
  }
  const SliceRule rule = found.rule;
  const int dim = rule == SliceRule::kColumns ? 1 : 0;
  const bool two = rule == SliceRule::kTwoRows;
  if (rule != SliceRule::kReplicated && (dim >= shape.rank() || (two && shape[0] % 2 != 0)))
    return Corrupt("{} of shape {} is cut along dimension {} by universal_checkpoint_info", name,
                   ToString(shape), dim);
  Box in_slice = Box::Whole(shape);
  if (two) in_slice.extent[0] /= 2;
  ParameterSpec spec{.name = name};
  if (rule != SliceRule::kReplicated) spec.cuts = {{Axis::kTp, static_cast<int8_t>(dim)}};
  spec = WholeOf(std::move(spec), in_slice.extent, topology);
  CAIRN_ASSIGN_OR_RETURN(const Slice held, SliceOf(spec, topology, slice.tp));
  SliceLayout layout{spec.shape, {{held.box, in_slice}}};
  if (two) {
    layout.whole[0] *= 2;
    layout.parts.push_back(layout.parts[0]);
    layout.parts[1].box.offset[0] += spec.shape[0];
    layout.parts[1].in_array.offset[0] = in_slice.extent[0];
  }
  return layout;
}

// The first slice that comes with a box of a tensor is read; others must equal it.
Status AddByPattern(RankSlices& ranks, const SlicePatterns& patterns, const RankSlice& slice, bool buffer) {
  CAIRN_ASSIGN_OR_RETURN(const SliceLayout layout, LayoutOf(ranks, patterns, slice, buffer));
  const StoredArray& stored = slice.tensor;
  CAIRN_ASSIGN_OR_RETURN(
      const uint32_t tensor,
      ranks.builder.Tensor({.name = slice.place.name, .shape = layout.whole}, slice.role, stored.dtype));
  const uint32_t array = ranks.builder.AddArray(stored);
  for (const BoxMap& part : layout.parts)
    ranks.builder.AddSlice({stored.Stored(part), tensor, array}, &part == &layout.parts[0]);
  return OkStatus();
}

// A tensor under a second name is the same stretch of the file, or must hold the same.
Status AddAgain(RankSlices& ranks, const std::string& first, const StoredArray& array) {
  const auto& parts = ranks.builder.catalog.parts;
  const auto part = std::ranges::find_if(parts, [&](const ArrayPart& p) {
    const TensorEntry& tensor = ranks.builder.catalog.tensors[p.tensor];
    return tensor.role == Role::kWeight && tensor.spec.name == first;
  });
  if (part == parts.end())
    return Corrupt("{}: {} should share the memory of {}, which is missing", ranks.directory(), array.name,
                   first);
  const StoredArray& same = ranks.builder.catalog.arrays[part->array];
  if (same.dtype != array.dtype || !(same.shape == array.shape))
    return Corrupt("{}: {} should share the memory of {}, which has another shape or type", ranks.directory(),
                   array.name, first);
  const auto place = [](const StoredArray& a) {
    return std::pair(a.extents[0].file, a.extents[0].file_offset);
  };
  if (array.extents.empty() || place(array) == place(same)) return OkStatus();
  const uint32_t copy = ranks.builder.AddArray(array);
  ranks.builder.AddReplica(part->tensor, copy, part->array);
  return OkStatus();
}

// Under their own names: those of a single rank unchanged, else pipeline stages and tensor parallel slices.
Status JoinByName(RankSlices& ranks, const Places& weights) {
  const bool alone = ranks.models.size() == 1;
  auto patterns = SlicePatterns::Read(alone ? nullptr : Find(ranks.root(), "universal_checkpoint_info"));
  if (!patterns.ok()) return ranks.Fail(ranks.models[0].name(), patterns.status());
  std::set<std::string> buffers;
  for (const TorchFile& model : ranks.models) buffers.merge(BufferNamesOf(model.root()));
  const nlohmann::json shared = MegatronState(ranks.root()).value("shared_params", nlohmann::json::object());
  std::vector<std::pair<std::string, const StoredArray*>> again;  // under a second name
  for (const RankSlice& slice : ranks.slices) {
    const std::string& name = slice.place.name;
    if (const auto first = shared.find(name);
        alone && first != shared.end() && weights.contains({kBeforeLayers, first->get<std::string>()})) {
      again.emplace_back(first->get<std::string>(), &slice.tensor);
      continue;
    }
    CAIRN_RETURN_IF_ERROR(
        AddByPattern(ranks, *patterns, slice, buffers.contains(name)).WithContext(ranks.directory()));
  }
  for (const auto& [first, array] : again) CAIRN_RETURN_IF_ERROR(AddAgain(ranks, first, *array));
  return OkStatus();
}

}  // namespace

Status RankSlices::Take(const std::string& name, int tp, Role role, StoredArray array,
                        const std::string& file) {
  if (layers.megatron && IsMegatronBuffer(name)) {
    builder.account.Omit(Fate::kBuffer, builder.catalog, array);
    return OkStatus();
  }
  if (IsAllowed(options, name)) {
    builder.account.Omit(Fate::kAllowed, builder.catalog, array);
    return OkStatus();
  }
  MegatronName place{kBeforeLayers, name};
  if (layers.megatron) {
    const auto found = ParseMegatronName(name);
    if (!found) return Fail(file, HasNoPlace(name));
    place = *found;
  }
  slices.push_back({std::move(place), tp, role, std::move(array)});
  return OkStatus();
}

// A master without a weight is the weight, which the training would round from it.
Status JoinSlices(RankSlices& ranks) {
  Places weights;
  for (const RankSlice& slice : ranks.slices)
    if (slice.is_weight()) weights.emplace(slice.place.layer, slice.place.name);
  for (RankSlice& slice : ranks.slices)
    if (slice.role == Role::kMaster && !weights.contains({slice.place.layer, slice.place.name}))
      slice.role = Role::kWeight;
  if (ranks.layers.megatron) return JoinMegatron(ranks);
  return JoinByName(ranks, weights);
}

}  // namespace cairn
