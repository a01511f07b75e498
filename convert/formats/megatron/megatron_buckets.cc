// Make() finds out which layers each pipeline chunk has, and checks that there are as many buffers.
// AddWeight() collects, per TP rank or rank of ETP and EP, the pieces of each weight, in the order in which
// the program registers them (OrdinalOf); each expert is a weight. Read() joins the pieces, and has the
// optimizer match them by value with the masters in each bucket. Assemble() hands over the states cut as the
// weights were; what a later TP rank has whole, and the last stage's copy of the embedding, are replicas.

#include "convert/formats/megatron/megatron_buckets.h"

#include <algorithm>

#include "ckpt/base/parse_number.h"
#include "ckpt/model/placement.h"
#include "convert/formats/megatron/megatron_cells.h"
#include "convert/formats/megatron/megatron_core.h"
#include "convert/stream/step_plan.h"

namespace cairn {
namespace {

// Removes the prefix `text` of `name`.
bool Take(std::string_view& name, std::string_view text) {
  if (!name.starts_with(text)) return false;
  name.remove_prefix(text.size());
  return true;
}

bool Take(std::string_view& name, int& number) {
  number = TakeNumber<int>(name).value_or(-1);
  return number >= 0;
}

// "optimizer.distributed.dp_group_idx_1.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.param",
// after "chained_0." or, of experts, "chained_1." if there are two optimizers
struct BucketName {
  int optimizer = 0;
  int rank = 0;
  int chunk = 0;
  int bucket = 0;
  Role role = Role::kMaster;
};
std::optional<BucketName> ParseBucketName(std::string_view name) {
  BucketName found;
  if (Take(name, "chained_") && (!Take(name, found.optimizer) || found.optimizer > 1 || !Take(name, ".")))
    return std::nullopt;
  if (!Take(name, "optimizer.distributed.dp_group_idx_") || !Take(name, found.rank) ||
      !Take(name, ".gbuf_idx_") || !Take(name, found.chunk) || !Take(name, ".dtype_"))
    return std::nullopt;
  constexpr std::string_view kBucket = ").bucket_idx_";
  const size_t at = name.find(kBucket);
  if (at == name.npos) return std::nullopt;
  name.remove_prefix(at + kBucket.size());
  if (!Take(name, found.bucket) || !Take(name, ".")) return std::nullopt;
  const auto names = [](const Role& role) { return kBufferPlaces.NameOf(role); };
  const auto role = std::ranges::find(kBufferRoles, name, names);
  if (role == std::end(kBufferRoles)) return std::nullopt;
  found.role = *role;
  return found;
}

// All chunks of a flat tensor, one after another.
Result<StoredArray> FlatArray(const DcpTensor& tensor, DcpItems& items, StoredBuilder& builder) {
  if (tensor.shape.rank() != 1) return Corrupt("{} has shape {}", tensor.name, ToString(tensor.shape));
  std::vector<const DcpChunk*> chunks;
  for (const DcpChunk& chunk : tensor.chunks) chunks.push_back(&chunk);
  return JoinChunks(tensor, std::move(chunks), tensor.shape, items, builder);
}

// The number of parts that a weight of `shape` is cut into along one dimension, `first` or a later one, and
// the number of the part that `box` is; nullopt for another box.
std::optional<std::pair<uint64_t, uint64_t>> PartOf(const Dims& shape, const Box& box, int first) {
  std::pair<uint64_t, uint64_t> part{1, 0};
  for (int d = first; d < box.rank(); ++d) {
    if (box.extent[d] == shape[d]) continue;
    if (part.first > 1 || box.extent[d] == 0 || shape[d] % box.extent[d] != 0 ||
        box.offset[d] % box.extent[d] != 0)
      return std::nullopt;
    part = {shape[d] / box.extent[d], box.offset[d] / box.extent[d]};
  }
  return part;
}

Result<std::vector<int>> LayersOf(const PyValue& args, const MegatronShape& shape, int pp) {
  const auto number = [&](const char* name) {
    return std::clamp<int64_t>(AsInt(Find(args, name)).value_or(0), 0, INT32_MAX / 4);
  };
  const int layers = static_cast<int>(std::min<int64_t>(shape.layers, INT32_MAX / 4));
  Topology topology{.pp = pp};
  const int64_t in_chunk = number("num_layers_per_virtual_pipeline_stage");
  int64_t chunks = number("virtual_pipeline_model_parallel_size");
  if (chunks <= 1 && in_chunk > 0) chunks = layers / pp / in_chunk;
  topology.virtual_stages = static_cast<int>(std::clamp<int64_t>(chunks, 1, std::max(1, layers / pp)));
  const PyValue* layout = Find(args, "pipeline_model_parallel_layout");
  if (layout && !layout->is(PyKind::kNone)) return NotSupported("its pipeline has a custom layout");
  const int64_t first = number("decoder_first_pipeline_num_layers");
  const int64_t last = number("decoder_last_pipeline_num_layers");
  if (first <= 0 && last <= 0)
    return LayersBesideEnds(layers, topology, number("account_for_embedding_in_pipeline_split") != 0,
                            number("account_for_loss_in_pipeline_split") != 0);
  const int64_t others = pp - (first > 0) - (last > 0), between = layers - first - last;
  if (topology.virtual_stages > 1 || between < 0 || others < 0 ||
      (others == 0 ? between != 0 : between % others != 0))
    return NotSupported("its pipeline has {} layers first and {} last of {} on {} stages", first, last,
                        layers, pp);
  std::vector<int> of_stages(pp, others > 0 ? static_cast<int>(between / others) : 0);
  if (first > 0) of_stages.front() = static_cast<int>(first);
  if (last > 0) of_stages.back() = static_cast<int>(last);
  return of_stages;
}

}  // namespace

Result<MegatronBuckets> MegatronBuckets::Make(const PyValue& args, const MegatronShape& shape,
                                              const Topology& topology, const DcpIndex& index) {
  MegatronBuckets buckets;
  buckets.shape_ = shape;
  buckets.topology_ = topology;
  buckets.apart_ = topology.ep > 1;
  if (shape.experts > 0 && !buckets.apart_ && topology.size(Axis::kEtp) != topology.tp)
    return NotSupported("its experts are cut in ETP={} and TP={} without EP", topology.size(Axis::kEtp),
                        topology.tp);
  CAIRN_ASSIGN_OR_RETURN(buckets.layers_, LayersOf(args, shape, topology.pp));
  CAIRN_ASSIGN_OR_RETURN(buckets.buffers_, BuffersOf(index));
  // The work below is bounded by the file, not by its arguments.
  const size_t of_experts = std::ranges::count_if(
      buckets.buffers_, [](const auto& buffer) { return std::get<bool>(buffer.first); });
  const size_t others = buckets.buffers_.size() - of_experts;
  if (others != static_cast<size_t>(topology.tp) * buckets.layers_.size())
    return NotSupported("it has {} buffers for TP={} and {} chunks of the pipeline", others, topology.tp,
                        buckets.layers_.size());
  if (of_experts < (buckets.apart_ ? static_cast<size_t>(topology.size(Axis::kEtp)) * topology.ep : 0))
    return NotSupported("it has {} buffers of experts for ETP={} and EP={}", of_experts,
                        topology.size(Axis::kEtp), topology.ep);
  return buckets;
}

// The final norm comes before the layers of multi-token prediction, the output after them.
MegatronBuckets::Ordinal MegatronBuckets::OrdinalOf(int layer, const MegatronParameter& parameter,
                                                    int64_t expert) const {
  const MegatronModule& module = *parameter.module;
  const bool final_norm = module.canonical[0] == "final_norm";
  const int64_t at = final_norm ? shape_.layers : layer >= shape_.layers ? int64_t{layer} + 1 : layer;
  const int64_t in_table = &module - MegatronModules().data();
  return {at, shape_.dialect.Order(module), 2 * in_table + parameter.bias, expert};
}

Status MegatronBuckets::AddWeight(const MegatronName& name, const Dims& shape, const Box& box,
                                  const StoredArray& chunk) {
  if (IsInLayers(name.layer) && name.layer >= shape_.AllLayers())
    return Corrupt("{} is in layer {} of {}", chunk.name, name.layer, shape_.AllLayers());
  const MegatronParameter parameter = FindMegatronParameter(name.name, shape_.key_value_rank > 0);
  if (!parameter.module || (parameter.module->core.empty() && parameter.module->fused.empty()))
    return NotSupported("{} has no known place in a bucket", chunk.name);
  if (parameter.module->cut_as().keeps_type) return OkStatus();  // a buffer
  const bool experts = parameter.module->of_experts();
  const auto part = PartOf(shape, box, experts ? 1 : 0);
  if (!part || (experts && (box.rank() == 0 || box.extent[0] != 1)))
    return NotSupported("a chunk of {} belongs to no rank", chunk.name);
  const auto [parts, at] = *part;
  const uint64_t expert = experts ? box.offset[0] : 0;
  const uint64_t of_rank = experts ? std::max<uint64_t>(1, shape[0] / topology_.ep) : 1;
  const uint64_t first_rank = expert / of_rank * topology_.size(Axis::kEtp);
  const auto tp = static_cast<uint64_t>(topology_.size(experts ? Axis::kEtp : Axis::kTp));
  const bool halves = shape_.IsGated() && parameter.module->is_gate_up();
  if (parts != 1 && parts != (halves ? 2 * tp : tp))
    return NotSupported("{} is cut in {} for {}={}", chunk.name, parts, experts ? "ETP" : "TP", tp);
  for (uint64_t rank = 0; rank < tp; ++rank) {
    if (parts > 1 && rank != at % tp) continue;
    Held& held = held_[{experts && apart_, static_cast<int>(first_rank + rank)}]
                      [OrdinalOf(name.layer, parameter, static_cast<int64_t>(expert))];
    held.name = name;
    held.shape = shape;
    held.pieces[halves ? at / tp : 0] = {box, chunk};
  }
  return OkStatus();
}

Result<MegatronBuckets::Buffers> MegatronBuckets::BuffersOf(const DcpIndex& index) {
  Buffers buffers;
  for (const DcpTensor& tensor : index.tensors) {
    if (!IsOne(tensor.name)) continue;
    const auto name = ParseBucketName(tensor.name);
    if (!name) return NotSupported("{} has an unknown form", tensor.name);
    buffers[{name->optimizer > 0, name->rank, name->chunk}][name->bucket].emplace_back(name->role, &tensor);
  }
  for (auto& [place, buckets] : buffers)
    for (auto& [number, bucket] : buckets) {
      std::ranges::sort(bucket, {}, [](const auto& state) { return state.first; });
      if (bucket.size() != std::size(kBufferRoles) || bucket[0].first != Role::kMaster)
        return NotSupported("bucket {} of rank {} must hold one master and two moments", number,
                            std::get<1>(place));
    }
  return buffers;
}

// In the order in which the rank registers them. The last stage has the embedding again, as its head or for
// multi-token prediction.
std::vector<MegatronWeight*> MegatronBuckets::WeightsOf(const Owner& owner, int chunk) {
  std::vector<MegatronWeight*> weights;
  for (auto& [ordinal, held] : held_[owner])
    if (StageOf(held.name.layer, layers_) == chunk) weights.push_back(&held.weight);
  const int chunks = static_cast<int>(layers_.size());
  const bool mtp = shape_.mtp_layers > 0;
  if (owner.first || (!shape_.tied && !mtp) || chunks == 1 || chunk + 1 < chunks) return weights;
  const auto& held = held_[owner];
  const auto embedding =
      held.find(OrdinalOf(kBeforeLayers, FindMegatronParameter("word_embeddings.weight"), 0));
  if (embedding == held.end()) return weights;
  MegatronWeight* copy = &heads_.emplace_back(MegatronWeight{embedding->second.weight.weight, {}});
  weights.insert(mtp ? weights.begin() : weights.end(), copy);
  return weights;
}

Result<std::vector<MegatronBuffer>> MegatronBuckets::ReadBuffer(const std::map<int, Bucket>& buckets,
                                                                DcpItems& items,
                                                                StoredBuilder& builder) const {
  std::vector<MegatronBuffer> read;
  for (const auto& [number, bucket] : buckets)
    for (MegatronBuffer& buffer = read.emplace_back(); const auto& [role, tensor] : bucket) {
      CAIRN_ASSIGN_OR_RETURN(StoredArray flat, FlatArray(*tensor, items, builder));
      buffer.vectors.emplace_back(role, std::move(flat));
    }
  return read;
}

Status MegatronBuckets::Read(DcpItems& items, MegatronOptimizer& optimizer, StoredBuilder& builder) {
  for (auto& [owner, rank] : held_)
    for (auto& [ordinal, held] : rank) {
      StoredArray& whole = held.weight.weight;
      whole = held.pieces.begin()->second.second;
      for (auto piece = std::next(held.pieces.begin()); piece != held.pieces.end(); ++piece) {
        AppendExtents(piece->second.second, whole.shape.Volume(), whole);
        whole.shape[0] += piece->second.second.shape[0];
      }
    }
  const int chunks = static_cast<int>(layers_.size()), pp = topology_.pp;
  const int expert_ranks = apart_ ? topology_.size(Axis::kEtp) * topology_.ep : 0;
  size_t left = buffers_.size();
  for (const bool experts : {false, true})
    for (int rank = 0, ranks = experts ? expert_ranks : topology_.tp; rank < ranks; ++rank)
      for (int stage = 0; stage < pp; ++stage)
        for (int chunk = stage, number = 0; chunk < chunks; chunk += pp) {
          const std::vector<MegatronWeight*> weights = WeightsOf({experts, rank}, chunk);
          if (weights.empty()) continue;  // no buffer
          const int place = rank + ranks * stage;
          const auto found = buffers_.find({experts, place, number++});
          const std::string name =
              fmt::format("model parallel rank {}{}", place, experts ? " of the experts" : "");
          if (found == buffers_.end()) return Corrupt("the buffer of {} is missing", name);
          CAIRN_ASSIGN_OR_RETURN(const auto buckets, ReadBuffer(found->second, items, builder));
          CAIRN_RETURN_IF_ERROR(optimizer.ReadBuckets(buckets, weights).WithContext(name));
          --left;
        }
  if (left > 0) return Corrupt("{} of its buffers belong to no rank", left);
  return OkStatus();
}

Status MegatronBuckets::Assemble(MegatronAssembler& assembler, StoredBuilder& builder) const {
  for (const MegatronWeight& head : heads_)
    for (const auto& [role, states] : head.states)
      builder.account.Omit(Fate::kReplica, builder.catalog, states);
  for (const auto& [owner, rank] : held_)
    for (const auto& [ordinal, held] : rank)
      for (const auto& [role, states] : held.weight.states) {
        uint64_t begin = 0;
        for (const auto& [number, piece] : held.pieces) {
          const Box& box = piece.first;
          const bool replica = owner.second > 0 && box.extent == held.shape;
          StoredArray slice = StretchOf(states, begin, box.extent);
          if (replica)
            builder.account.Omit(Fate::kReplica, builder.catalog, slice);
          else
            CAIRN_RETURN_IF_ERROR(
                assembler.Add({held.name.name, held.name.layer, 0, role, std::move(slice), held.shape, box}));
          begin += box.Volume();
        }
      }
  return OkStatus();
}

}  // namespace cairn
