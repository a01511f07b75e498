// A step of a small model with random values, written straight with ShardWriter and Committer: what a
// training on that topology would have left behind.
//
// Values depend on (seed, tensor, element) only, never on the topology, so that steps of one recipe on two
// topologies have the same tensors. Whole tensors are in memory here: this is the plain version that
// streams are tested against.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "ckpt/codec/cast.h"
#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/placement.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/run_health.h"
#include "ckpt/step/packed_shard_writer.h"

namespace cairn {

struct TinyGpt {
  int layers = 2;
  uint64_t hidden = 16;
  uint64_t heads = 4;
  uint64_t ffn = 64;
  uint64_t vocab = 50;
  uint64_t positions = 12;
  bool tied = true;
  uint64_t pad_multiple = 8;
  uint64_t experts = 0;  // of each layer, beside a shared one of `ffn`; 0: not a mixture
  uint64_t expert_ffn = 24;
};

// Those of one layer's MLP: a router, gated experts with a bias, and a shared expert.
inline std::vector<ParameterSpec> MixtureSpecs(const TinyGpt& m, int layer) {
  std::vector<ParameterSpec> specs;
  const auto add = [&](const char* name, Dims shape, std::vector<Cut> cuts, bool of_experts) {
    specs.push_back({.name = fmt::format("layers.{}.mlp.{}", layer, name),
                     .shape = shape,
                     .cuts = std::move(cuts),
                     .layer = layer,
                     .of_experts = of_experts});
  };
  const Cut ep{.axis = Axis::kEp, .dim = 0};
  const auto etp = [](int8_t dim) { return Cut{.axis = Axis::kEtp, .dim = dim}; };
  add("router.weight", {m.experts, m.hidden}, {}, false);
  add("experts.gate.weight", {m.experts, m.expert_ffn, m.hidden}, {ep, etp(1)}, true);
  add("experts.up.weight", {m.experts, m.expert_ffn, m.hidden}, {ep, etp(1)}, true);
  add("experts.down.weight", {m.experts, m.hidden, m.expert_ffn}, {ep, etp(2)}, true);
  add("experts.down.bias", {m.experts, m.hidden}, {ep}, true);
  add("shared.up.weight", {m.ffn, m.hidden}, {{.dim = 0}}, false);
  add("shared.down.weight", {m.hidden, m.ffn}, {{.dim = 1}}, false);
  return specs;
}

// The parameters, in the trainer's order.
inline std::vector<ParameterSpec> SpecsOf(const TinyGpt& m) {
  std::vector<ParameterSpec> specs = GptSpecs({.layers = m.layers,
                                               .hidden = static_cast<int64_t>(m.hidden),
                                               .heads = static_cast<int64_t>(m.heads),
                                               .ffn = static_cast<int64_t>(m.ffn),
                                               .vocab = static_cast<int64_t>(m.vocab),
                                               .positions = static_cast<int64_t>(m.positions),
                                               .vocab_multiple = static_cast<int64_t>(m.pad_multiple),
                                               .tied = m.tied});
  if (m.experts == 0) return specs;
  std::vector<ParameterSpec> mixture;
  for (ParameterSpec& spec : specs) {
    const std::string mlp = fmt::format("layers.{}.mlp.", spec.layer);
    if (!spec.name.starts_with(mlp))
      mixture.push_back(std::move(spec));
    else if (mixture.back().layer != spec.layer || !mixture.back().name.starts_with(mlp))
      std::ranges::move(MixtureSpecs(m, spec.layer), std::back_inserter(mixture));
  }
  return mixture;
}

// The manifest's `model` object.
inline nlohmann::json ModelJson(const TinyGpt& m) {
  nlohmann::json model = {{"architecture", "gpt2"},
                          {"num_layers", m.layers},
                          {"hidden_size", m.hidden},
                          {"num_attention_heads", m.heads},
                          {"ffn_hidden_size", m.ffn},
                          {"vocab_size", m.vocab},
                          {"max_position_embeddings", m.positions},
                          {"tied_embeddings", m.tied},
                          {"layernorm_epsilon", 1e-5},
                          {"tokenizer", "bytes"}};
  if (m.experts > 0)
    model.update({{"architecture", "mixture"},
                  {"num_experts", m.experts},
                  {"moe_ffn_hidden_size", m.expert_ffn},
                  {"shared_expert_ffn_hidden_size", m.ffn}});
  return model;
}

struct StepRecipe {
  std::vector<ParameterSpec> specs;
  Topology topology;
  nlohmann::json model = nlohmann::json::object();
  nlohmann::json state = {{"iteration", 100}, {"consumed_samples", 800}, {"consumed_tokens", 102400}};
  Dtype weights = Dtype::kBF16;
  bool optimizer = true;                 // masters (of 16-bit weights) and moments
  std::optional<Topology> rng_topology;  // the ranks of the random states; the step's own topology by default
  uint64_t rng_bytes = 40;               // of each rank's random state; 0: none
  uint64_t seed = 1;
  std::string run = "0123456789abcdef0123456789abcdef";
  int64_t step = 100;
  bool packed = false;         // by PackedShardWriter
  bool split_master = false;   // packed; weights are then their masters rounded
  std::string unrounded;       // with split_master: display name of a weight whose last element is not
  std::string nonce = "7e57";  // of this saver's names
  std::optional<BranchedStep> origin = {};
};

inline StepRecipe RecipeOf(const TinyGpt& model, const Topology& topology) {
  return {.specs = SpecsOf(model), .topology = topology, .model = ModelJson(model)};
}

// All tensors of a recipe in catalog order: each parameter's roles, then the random states by rank.
inline std::vector<TensorEntry> TensorsOf(const StepRecipe& recipe) {
  std::vector<TensorEntry> tensors;
  for (const ParameterSpec& spec : recipe.specs) {
    tensors.push_back({spec, Role::kWeight, recipe.weights});
    if (!recipe.optimizer) continue;
    if (recipe.weights != Dtype::kF32) tensors.push_back({spec, Role::kMaster, Dtype::kF32});
    tensors.push_back({spec, Role::kExpAvg, Dtype::kF32});
    tensors.push_back({spec, Role::kExpAvgSq, Dtype::kF32});
  }
  const Topology rng = recipe.rng_topology.value_or(recipe.topology);
  for (int rank = 0; recipe.rng_bytes > 0 && rank < rng.world(); ++rank) {
    const std::string name = fmt::format("rng.tp{}-pp{}-dp{}.rank-{}", rng.tp, rng.pp, rng.dp, rank);
    tensors.push_back({{.name = name, .shape = {recipe.rng_bytes}}, Role::kRng, Dtype::kU8});
  }
  return tensors;
}

// The whole tensor: floats in [-1, 1), other dtypes any bits.
inline std::vector<std::byte> ValuesOf(const TensorEntry& tensor, uint64_t seed) {
  const Digest name = DigestOf(DisplayName(tensor));
  uint64_t x = seed;
  for (std::byte b : name) x = x * 0x100000001b3 + static_cast<uint64_t>(b);
  const uint64_t size = SizeOf(tensor.dtype);
  std::vector<std::byte> bytes(tensor.bytes());
  for (uint64_t i = 0; i < bytes.size(); i += size) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;  // xorshift64
    const float value = static_cast<float>(static_cast<int64_t>(x) >> 40) / (1 << 23);
    uint64_t bits = std::bit_cast<uint32_t>(value);
    if (tensor.dtype == Dtype::kBF16) bits >>= 16;
    if (tensor.dtype == Dtype::kF16) bits = 0x3800 | (x >> 16 & 0x83ff);  // magnitude in [0.5, 1)
    if (tensor.dtype != Dtype::kF32 && tensor.dtype != Dtype::kBF16 && tensor.dtype != Dtype::kF16) bits = x;
    std::memcpy(bytes.data() + i, &bits, size);
  }
  return bytes;
}

// The pieces that `rank` writes, in the order of `tensors`.
inline Result<std::vector<Piece>> PiecesOfRank(const StepRecipe& recipe,
                                               const std::vector<TensorEntry>& tensors, int rank) {
  CAIRN_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(recipe.specs, recipe.topology, rank));
  std::vector<Piece> pieces;
  for (const PlacedPiece& placed : PiecesOf(layout, recipe.topology, rank))
    for (uint32_t t = 0; t < tensors.size(); ++t)
      if (tensors[t].role != Role::kRng && tensors[t].spec.name == recipe.specs[placed.index].name)
        pieces.push_back({.tensor = t, .box = placed.box, .range = placed.range});
  int random_state = 0;
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role != Role::kRng || random_state++ % recipe.topology.world() != rank) continue;
    pieces.push_back(
        {.tensor = t, .box = Box::Whole(tensors[t].spec.shape), .range = {0, tensors[t].spec.shape[0]}});
  }
  return pieces;
}

// The bytes of a piece, element by element out of the whole tensor.
inline std::vector<std::byte> GatherPiece(const Piece& piece, const TensorEntry& tensor,
                                          const std::vector<std::byte>& whole) {
  const uint64_t size = SizeOf(tensor.dtype);
  std::vector<std::byte> bytes(piece.range.size() * size);
  for (uint64_t i = 0; i < piece.range.size(); ++i) {
    Dims point = piece.box.offset;
    uint64_t rest = piece.range.begin + i;
    for (int d = piece.box.rank() - 1; d >= 0; --d) {
      point[d] += rest % piece.box.extent[d];
      rest /= piece.box.extent[d];
    }
    std::memcpy(bytes.data() + i * size,
                whole.data() + FlatIndex(Box::Whole(tensor.spec.shape), point) * size, size);
  }
  return bytes;
}

// fp32 to a type of 16 bits.
inline std::vector<std::byte> Rounded(const std::vector<std::byte>& master, Dtype dtype) {
  std::vector<std::byte> weight(master.size() / 2);
  Cast(Dtype::kF32, master, dtype, weight, OnOverflow::kInfinity);
  return weight;
}

// Writes RUN/step-N; makes RUN if it is missing.
inline Status MakeStep(FileSystem& fs, const std::string& run_dir, const StepRecipe& recipe) {
  Committer committer(fs, run_dir, recipe.step, recipe.nonce);
  const std::string& partial = committer.partial();
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, run_dir));
  CAIRN_RETURN_IF_ERROR(committer.MakePartial());
  const std::vector<TensorEntry> tensors = TensorsOf(recipe);
  std::vector<std::vector<std::byte>> values;
  for (const TensorEntry& tensor : tensors) values.push_back(ValuesOf(tensor, recipe.seed));
  for (size_t t = 0; recipe.split_master && t + 1 < tensors.size(); ++t) {
    if (tensors[t].role == Role::kWeight) values[t] = Rounded(values[t + 1], recipe.weights);
    if (DisplayName(tensors[t]) == recipe.unrounded) *(values[t].end() - 2) ^= std::byte{1};
  }
  WriteRing ring(fs, {.buffer_bytes = 64 << 10});
  CAIRN_ASSIGN_OR_RETURN(const RunSteps there, ReadRunSteps(fs, run_dir));
  const StepInfo info{.identity = {recipe.run, recipe.step},
                      .topology = recipe.topology,
                      .model = recipe.model,
                      .state = recipe.state,
                      .descent = NextDescent(recipe.step, recipe.run, there.newest, recipe.origin)};
  std::vector<ShardReceipt> receipts;
  for (int rank = 0; rank < recipe.topology.world(); ++rank) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, PiecesOfRank(recipe, tensors, rank));
    std::vector<std::vector<std::byte>> bytes;
    for (const Piece& piece : pieces)
      bytes.push_back(GatherPiece(piece, tensors[piece.tensor], values[piece.tensor]));
    const auto write = [&](auto& writer, auto append) -> Status {
      for (size_t i = 0; i < pieces.size(); ++i) CAIRN_RETURN_IF_ERROR(append(i));
      CAIRN_ASSIGN_OR_RETURN(ShardReceipt receipt, writer.Finish());
      receipts.push_back(std::move(receipt));
      return OkStatus();
    };
    if (recipe.packed) {
      CAIRN_ASSIGN_OR_RETURN(
          const auto writer,
          PackedShardWriter::Create(fs, ring, partial,
                                    ShardContents(ShardName(rank), info.identity, tensors, pieces),
                                    {.direct = Direct::kOff}));
      CAIRN_RETURN_IF_ERROR(write(*writer, [&](size_t i) {
        const Role role = tensors[pieces[i].tensor].role;
        const bool f16 = recipe.weights == Dtype::kF16;
        if (!recipe.split_master || role != (f16 ? Role::kWeight : Role::kMaster))
          return writer->Append(i, bytes[i]);
        // A piece's master follows it.
        return f16 ? writer->AppendDerived(i, bytes[i + 1], bytes[i])
                   : writer->AppendSplit(i, bytes[i - 1], bytes[i]);
      }));
    } else {
      CAIRN_ASSIGN_OR_RETURN(
          const auto writer,
          ShardWriter::Create(fs, ring, partial, {ShardName(rank), info.identity, tensors, pieces},
                              Direct::kOff));
      CAIRN_RETURN_IF_ERROR(write(*writer, [&](size_t i) { return writer->Append(i, bytes[i]); }));
    }
  }
  CAIRN_ASSIGN_OR_RETURN(StepSeal seal, MakeSeal(info, tensors, receipts));
  return committer.Commit(seal);
}

}  // namespace cairn
