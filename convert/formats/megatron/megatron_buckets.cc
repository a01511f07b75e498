// Make() finds out which layers each pipeline chunk has, and checks that there are as many buffers.
// AddWeight() collects, per TP rank, the pieces of each weight, in the order in which the program registers
// them (OrdinalOf). Read() joins the pieces, and has the optimizer match them by value with the masters in
// each bucket. Assemble() hands over the states cut as the weights were; what a later TP rank has whole, and
// the last stage's tied embedding, are replicas.

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

// "optimizer.distributed.dp_group_idx_1.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.param"
struct BucketName {
  int rank = 0;
  int chunk = 0;
  int bucket = 0;
  Role role = Role::kMaster;
};
std::optional<BucketName> ParseBucketName(std::string_view name) {
  BucketName found;
  if (!Take(name, "optimizer.distributed.dp_group_idx_") || !Take(name, found.rank) ||
      !Take(name, ".gbuf_idx_") || !Take(name, found.chunk) || !Take(name, ".dtype_"))
    return std::nullopt;
  constexpr std::string_view kBucket = ").bucket_idx_";
  const size_t at = name.find(kBucket);
  if (at == name.npos) return std::nullopt;
  name.remove_prefix(at + kBucket.size());
  if (!Take(name, found.bucket) || !Take(name, ".")) return std::nullopt;
  const auto state = std::ranges::find(kBufferStates, name, &std::pair<Role, const char*>::second);
  if (state == std::end(kBufferStates)) return std::nullopt;
  found.role = state->first;
  return found;
}

// All chunks of a flat tensor, one after another.
Result<StoredArray> FlatArray(const DcpTensor& tensor, DcpItems& items, StoredBuilder& builder) {
  if (tensor.shape.rank() != 1) return Corrupt("{} has shape {}", tensor.name, ToString(tensor.shape));
  std::vector<const DcpChunk*> chunks;
  for (const DcpChunk& chunk : tensor.chunks) chunks.push_back(&chunk);
  return JoinChunks(tensor, std::move(chunks), tensor.shape, items, builder);
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
  buckets.tp_ = topology.tp;
  buckets.pp_ = topology.pp;
  buckets.gated_ = shape.IsGated();
  buckets.tied_ = shape.tied;
  buckets.local_spec_ = AsText(Find(args, "transformer_impl")).value_or("") == "local";
  buckets.layer_count_ = static_cast<uint64_t>(shape.layers);
  CAIRN_ASSIGN_OR_RETURN(buckets.layers_, LayersOf(args, shape, buckets.pp_));
  CAIRN_ASSIGN_OR_RETURN(buckets.buffers_, BuffersOf(index));
  // The sizes below are bounded by the file, not by its arguments.
  if (buckets.buffers_.size() != static_cast<size_t>(buckets.tp_) * buckets.layers_.size())
    return NotSupported("it has {} buffers for TP={} and {} chunks of the pipeline", buckets.buffers_.size(),
                        buckets.tp_, buckets.layers_.size());
  buckets.held_.resize(buckets.tp_);
  return buckets;
}

std::optional<MegatronBuckets::Ordinal> MegatronBuckets::OrdinalOf(const MegatronName& name) const {
  const MegatronParameter parameter = FindMegatronParameter(name.name);
  if (parameter.module->core.empty()) return std::nullopt;
  return Ordinal{name.layer, 2 * parameter.module->CoreOrder(local_spec_) + (parameter.bias ? 1 : 0)};
}

Status MegatronBuckets::AddWeight(const MegatronName& name, const Dims& shape, const Box& box,
                                  const StoredArray& chunk) {
  if (IsInLayers(name.layer) && static_cast<uint64_t>(name.layer) >= layer_count_)
    return Corrupt("{} is in layer {} of {}", chunk.name, name.layer, layer_count_);
  const auto ordinal = OrdinalOf(name);
  if (!ordinal) return NotSupported("{} has no known place in a bucket", chunk.name);
  uint64_t at = 0, parts = 1;
  for (int d = 0; d < box.rank(); ++d) {
    if (box.extent[d] == shape[d]) continue;
    if (parts > 1 || box.extent[d] == 0 || shape[d] % box.extent[d] != 0 ||
        box.offset[d] % box.extent[d] != 0)
      return NotSupported("a chunk of {} belongs to no rank", chunk.name);
    parts = shape[d] / box.extent[d];
    at = box.offset[d] / box.extent[d];
  }
  const auto tp = static_cast<uint64_t>(tp_);
  const bool halves = gated_ && FindMegatronParameter(name.name).module->is_gate_up();
  if (parts != 1 && parts != (halves ? 2 * tp : tp))
    return NotSupported("{} is cut in {} for TP={}", chunk.name, parts, tp_);
  for (uint64_t rank = 0; rank < tp; ++rank) {
    if (parts > 1 && rank != at % tp) continue;
    Held& held = held_[rank][*ordinal];
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
    buffers[{name->rank, name->chunk}][name->bucket].emplace_back(name->role, &tensor);
  }
  for (auto& [place, buckets] : buffers)
    for (auto& [number, bucket] : buckets) {
      std::ranges::sort(bucket, {}, [](const auto& state) { return state.first; });
      if (bucket.size() != std::size(kBufferStates) || bucket[0].first != Role::kMaster)
        return NotSupported("bucket {} of rank {} must hold one master and two moments", number, place.first);
    }
  return buffers;
}

// In the order in which the rank registers them.
std::vector<MegatronWeight*> MegatronBuckets::WeightsOf(int tp, int chunk) {
  std::vector<MegatronWeight*> weights;
  for (auto& [ordinal, held] : held_[tp])
    if (StageOf(held.name.layer, layers_) == chunk) weights.push_back(&held.weight);
  const int chunks = static_cast<int>(layers_.size());
  if (!tied_ || chunks == 1 || chunk + 1 < chunks) return weights;
  const auto embedding = held_[tp].find(*OrdinalOf({kBeforeLayers, "word_embeddings.weight"}));
  if (embedding == held_[tp].end()) return weights;
  weights.push_back(&heads_.emplace_back(MegatronWeight{embedding->second.weight.weight, {}}));
  return weights;
}

Status MegatronBuckets::Read(DcpItems& items, MegatronOptimizer& optimizer, StoredBuilder& builder) {
  for (auto& rank : held_)
    for (auto& [ordinal, held] : rank) {
      StoredArray& whole = held.weight.weight;
      whole = held.pieces.begin()->second.second;
      for (auto piece = std::next(held.pieces.begin()); piece != held.pieces.end(); ++piece) {
        AppendExtents(piece->second.second, whole.shape.Volume(), whole);
        whole.shape[0] += piece->second.second.shape[0];
      }
    }
  const int chunks = static_cast<int>(layers_.size());
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (int tp = 0; tp < tp_; ++tp) {
      const int rank = tp + tp_ * (chunk % pp_);
      const auto found = buffers_.find({rank, chunk / pp_});
      if (found == buffers_.end()) return Corrupt("the buffer of model parallel rank {} is missing", rank);
      std::vector<MegatronBuffer> buckets;
      for (const auto& [number, bucket] : found->second)
        for (MegatronBuffer& buffer = buckets.emplace_back(); const auto& [role, tensor] : bucket) {
          CAIRN_ASSIGN_OR_RETURN(StoredArray flat, FlatArray(*tensor, items, builder));
          buffer.vectors.emplace_back(role, std::move(flat));
        }
      CAIRN_RETURN_IF_ERROR(optimizer.ReadBuckets(buckets, WeightsOf(tp, chunk))
                                .WithContext(fmt::format("model parallel rank {}", rank)));
    }
  return OkStatus();
}

Status MegatronBuckets::Assemble(MegatronAssembler& assembler, StoredBuilder& builder) const {
  for (const MegatronWeight& head : heads_)
    for (const auto& [role, states] : head.states)
      builder.account.Leave(Fate::kReplica, builder.catalog, states);
  for (size_t tp = 0; tp < held_.size(); ++tp)
    for (const auto& [ordinal, held] : held_[tp])
      for (const auto& [role, states] : held.weight.states) {
        uint64_t begin = 0;
        for (const auto& [number, piece] : held.pieces) {
          const Box& box = piece.first;
          const bool replica = tp > 0 && box.extent == held.shape;
          StoredArray slice = SliceOf(states, begin, box.extent);
          if (replica)
            builder.account.Leave(Fate::kReplica, builder.catalog, slice);
          else
            CAIRN_RETURN_IF_ERROR(
                assembler.Add({held.name.name, held.name.layer, 0, role, std::move(slice), held.shape, box}));
          begin += box.Volume();
        }
      }
  return OkStatus();
}

}  // namespace cairn
