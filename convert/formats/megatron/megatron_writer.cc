// For each TP rank its tensors are made once, and each PP rank takes from them those of its chunks, sorted
// as Megatron registers them: its optimizer numbers parameters and does not name them, so their order must be
// right. Then the rank's pickle is emitted: arguments, models, and the optimizer, whose states and masters
// walk the same groups. With ZeRO 1 masters and moments go to distrib_optim.pt as flat buffers instead.

#include <algorithm>

#include "ckpt/model/placement.h"
#include "convert/formats/megatron/megatron_buffer.h"
#include "convert/formats/megatron/megatron_core.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/formats/megatron_model/megatron_modules.h"
#include "convert/formats/megatron_model/megatron_names.h"

namespace cairn {
namespace {

constexpr const char* kHead = "output_layer.weight";

// One tensor of a chunk of a stage.
struct Held {
  LocalTensor tensor;
  std::string extra_state;  // of its module, after its last tensor; empty: none
};
using Chunk = std::vector<Held>;

class MegatronPlanner {
 public:
  MegatronPlanner(const CheckpointSource& source, const TargetOptions& options) : plan_(source, options) {}

  Result<TargetFiles> Plan() {
    CAIRN_RETURN_IF_ERROR(plan_.Choose(kTorchForm));
    if (plan_.shape.key_value_rank > 0 || plan_.shape.mtp_layers > 0)
      return NotSupported(
          "latent attention and multi-token prediction cannot be written as mp_rank_* yet; torch-dist holds "
          "them");
    if (plan_.Optimizers().size() > 1)
      return NotSupported("parameters of Muon cannot be written as mp_rank_* yet; torch-dist holds them");
    for (int tp = 0; tp < plan_.topology.tp; ++tp) {
      CAIRN_ASSIGN_OR_RETURN(const auto held,
                             MegatronTensors(plan_.tensors, plan_.shape, plan_.topology, tp));
      for (int pp = 0; pp < plan_.topology.pp; ++pp) AddRank(held, tp, pp);
    }
    plan_.builder.Place();
    plan_.builder.AddText(std::string(kMegatronTracker), std::to_string(plan_.state.iteration));
    AddNotes();
    return TargetFiles{std::move(plan_.builder.target), "", std::move(plan_.state.notes)};
  }

 private:
  // ---- The tensors of a stage.

  std::string NameOf(const MegatronTensor& tensor, int first_layer) const {
    const std::string prefix =
        IsInLayers(tensor.layer) ? fmt::format("decoder.layers.{}.", tensor.layer - first_layer) : "";
    return prefix + plan_.shape.dialect.Name(*tensor.module, MegatronLayer::kDense, tensor.bias);
  }

  Chunk ChunkOf(std::vector<MegatronTensor> tensors, int index) const {
    const int chunks = static_cast<int>(plan_.layers.size());
    int first_layer = 0;
    for (int c = 0; c < index; ++c) first_layer += plan_.layers[c];
    std::ranges::stable_sort(tensors, {}, [this](const MegatronTensor& t) {
      return std::pair(t.layer, plan_.shape.dialect.Order(*t.module));
    });
    Chunk chunk;
    for (const MegatronTensor& tensor : tensors) {
      const bool here = StageOf(tensor.layer, plan_.layers) == index;
      // The last of several stages holds the tied embedding again, as its head.
      const bool head =
          plan_.shape.tied && tensor.module->name == "word_embeddings" && chunks > 1 && index + 1 == chunks;
      if (!here && !head) continue;
      const std::string name = head ? kHead : NameOf(tensor, first_layer);
      Held held{{tensor, name}, ""};
      if (head || tensor.module->linear)
        held.extra_state = fmt::format("{}.{}", name.substr(0, name.rfind('.')), kExtraState);
      chunk.push_back(std::move(held));
    }
    const auto tied_head =
        std::ranges::find_if(chunk, [](const Held& held) { return held.tensor.name == kHead; });
    if (tied_head != chunk.end()) std::rotate(tied_head, tied_head + 1, chunk.end());
    return chunk;
  }

  // ---- A rank's file.

  void AddRank(const std::vector<MegatronTensor>& tensors, int tp, int pp) {
    std::vector<Chunk> chunks;
    for (int c = pp; c < static_cast<int>(plan_.layers.size()); c += plan_.topology.pp)
      chunks.push_back(ChunkOf(tensors, c));
    const std::string rank =
        plan_.topology.pp == 1 ? fmt::format("{:02}", tp) : fmt::format("{:02}_{:03}", tp, pp);
    const std::string directory = fmt::format("{}/mp_rank_{}/", IterationName(plan_.state.iteration), rank);
    const uint32_t zip = plan_.builder.BeginTorchFile(directory + "model_optim_rng.pt");
    PickleEmitter& p = plan_.builder.pickle(zip);
    p.BeginDict();
    nlohmann::json arguments = plan_.Arguments();
    arguments["ckpt_format"] = "torch";
    plan_.EmitProgress(p, arguments);
    for (size_t c = 0; c < chunks.size(); ++c) {
      p.Text(chunks.size() == 1 ? "model" : fmt::format("model{}", c));
      EmitModel(zip, chunks[c]);
    }
    if (plan_.tensors.optimizer) EmitOptimizer(zip, chunks);
    plan_.EmitSchedule(p);
    p.EndDict();
    if (plan_.distributed()) AddBuffers(chunks, directory + "distrib_optim.pt");
  }

  void EmitModel(uint32_t zip, const Chunk& chunk) {
    PickleEmitter& p = plan_.builder.pickle(zip);
    p.BeginOrderedDict();
    for (size_t i = 0; i < chunk.size(); ++i) {
      p.Text(chunk[i].tensor.name);
      EmitArray(zip, chunk[i].tensor, Role::kWeight);
      const bool last = i + 1 == chunk.size() || chunk[i + 1].extra_state != chunk[i].extra_state;
      if (last && !chunk[i].extra_state.empty()) p.Entry(chunk[i].extra_state, nullptr);
    }
    p.EndDict();
  }

  void EmitArray(uint32_t zip, const LocalTensor& tensor, Role role) {
    const TrainingParameter& parameter = plan_.tensors.parameters[tensor.parts[0].parameter];
    const Dtype dtype =
        role == Role::kWeight ? plan_.tensors.tensors[parameter.weight].entry.dtype : Dtype::kF32;
    AddParts(plan_.tensors, tensor, role, plan_.builder.EmitArray(zip, dtype, tensor.shape),
             plan_.builder.target);
  }

  // A fused tensor's parameters are of one group: matrices all of them, or vectors.
  std::vector<std::vector<const LocalTensor*>> Groups(const std::vector<Chunk>& chunks) const {
    std::vector<std::vector<const LocalTensor*>> groups(plan_.state.groups.size());
    for (const Chunk& chunk : chunks)
      for (const Held& held : chunk)
        groups[plan_.state.groups.GroupOf(plan_.tensors.parameters[held.tensor.parts[0].parameter].spec.name)]
            .push_back(&held.tensor);
    return groups;
  }

  void EmitOptimizer(uint32_t zip, const std::vector<Chunk>& chunks) {
    const auto groups = Groups(chunks);
    PickleEmitter& p = plan_.builder.pickle(zip);
    p.Text("optimizer");
    p.BeginDict();
    p.Text("optimizer");
    p.BeginDict();
    if (!plan_.distributed()) EmitStates(zip, groups);
    p.Text("param_groups");
    EmitGroups(p, groups);
    p.EndDict();
    plan_.EmitGradScaler(zip);
    if (!plan_.distributed()) EmitMasters(zip, groups);
    p.EndDict();
  }

  // torch's AdamW looks for its step in each state; Transformer Engine's Adam fails if it is present.
  void EmitStates(uint32_t zip, const std::vector<std::vector<const LocalTensor*>>& groups) {
    PickleEmitter& p = plan_.builder.pickle(zip);
    p.Text("state");
    p.BeginDict();
    int64_t id = 0;
    for (const auto& group : groups)
      for (const LocalTensor* tensor : group) {
        p.Int(id++);
        p.BeginDict();
        if (plan_.options.local_spec && plan_.state.adam) {
          p.Text("step");
          plan_.builder.EmitScalar(zip, static_cast<float>(plan_.state.optimizer_step));
        }
        for (const Role& role : plan_.tensors.parameters[tensor->parts[0].parameter].roles()) {
          p.Text(Name(role));
          EmitArray(zip, *tensor, role);
        }
        p.EndDict();
      }
    p.EndDict();
  }

  void EmitMasters(uint32_t zip, const std::vector<std::vector<const LocalTensor*>>& groups) {
    PickleEmitter& p = plan_.builder.pickle(zip);
    p.Text(plan_.places.master);
    p.BeginList();
    for (const auto& group : groups) {
      p.BeginList();
      for (const LocalTensor* tensor : group) EmitArray(zip, *tensor, Role::kMaster);
      p.EndList();
    }
    p.EndList();
  }

  void EmitGroups(PickleEmitter& p, const std::vector<std::vector<const LocalTensor*>>& groups) const {
    p.BeginList();
    size_t id = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<size_t> ids;
      for (size_t i = 0; i < groups[g].size(); ++i) ids.push_back(id++);
      if (!plan_.distributed()) {
        EmitParamGroup(p, plan_.state, g, ids, CoreGroupOwn(plan_.state, g));
        continue;
      }
      p.BeginDict();
      EmitHyperParameters(p, plan_.GroupOf(g));
      p.EndDict();
    }
    p.EndList();
  }

  void AddBuffers(const std::vector<Chunk>& chunks, const std::string& file) {
    std::vector<BufferChunk> buffers;
    for (const Chunk& chunk : chunks) {
      BufferChunk& buffer = buffers.emplace_back();
      for (const Held& held : chunk) {
        const bool shared = held.tensor.module->name == "word_embeddings" && plan_.shape.tied;
        buffer.push_back({&held.tensor, shared && plan_.topology.pp > 1});
      }
    }
    const Dtype weights = plan_.tensors.weight_type();
    AddDistribOptim(plan_.tensors, buffers, weights == Dtype::kF16 ? weights : Dtype::kF32, file,
                    plan_.builder);
    fits_all_buckets_ &= FitsAllBuckets(buffers);
  }

  void AddNotes() {
    plan_.state.notes.push_back("random states are not carried; start with --no-load-rng");
    if (!fits_all_buckets_)
      plan_.state.notes.push_back("some sizes are no multiples of 64; start without --overlap-grad-reduce");
    if (plan_.distributed() && plan_.tensors.weight_type() == Dtype::kF16)
      plan_.state.notes.push_back("start without --accumulate-allreduce-grads-in-fp32");
    plan_.AddNotes();
  }

  CorePlan plan_;
  bool fits_all_buckets_ = true;
};

}  // namespace

Result<TargetFiles> PlanMegatron(const CheckpointSource& source, const TargetOptions& options) {
  return MegatronPlanner(source, options).Plan();
}

}  // namespace cairn
