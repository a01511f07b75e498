// For each TP rank its tensors are made once, and each PP rank takes from them those of its chunks, sorted
// as Megatron registers them: its optimizer numbers parameters and names none, so their order must be right.
// Then the rank's pickle is emitted: arguments, models, and the optimizer, whose states and masters walk the
// same groups. With ZeRO 1 masters and moments go to distrib_optim.pt as flat buffers instead.

#include "convert/formats/megatron/megatron_writer.h"

#include <algorithm>

#include "ckpt/model/placement.h"
#include "convert/formats/megatron/argparse_namespace.h"
#include "convert/formats/megatron/megatron_buffer.h"
#include "convert/formats/megatron/megatron_core.h"
#include "convert/formats/megatron/megatron_lm.h"

namespace cairn {
namespace {

constexpr const char* kHead = "output_layer.weight";

// One tensor of a chunk of a stage.
struct Held {
  std::string name;
  LocalTensor tensor;
  std::string extra_state;  // of its module, behind its last tensor; empty: none
};
using Chunk = std::vector<Held>;

class MegatronPlanner {
 public:
  MegatronPlanner(const CheckpointSource& source, const TargetOptions& options)
      : source_(source), options_(options), state_(TrainingStateOf(source)), topology_(options.topology) {}

  Result<TargetFiles> Plan() {
    CAIRN_RETURN_IF_ERROR(Validate(topology_));
    CAIRN_ASSIGN_OR_RETURN(tensors_, ChooseTrainingTensors(source_, options_.dtype));
    CAIRN_ASSIGN_OR_RETURN(shape_, MegatronShapeOf(source_.manifest().model, tensors_));
    CAIRN_RETURN_IF_ERROR(CheckMegatronModel(source_.manifest().model, tensors_, shape_));
    CAIRN_RETURN_IF_ERROR(CheckOptimizer());
    CAIRN_ASSIGN_OR_RETURN(layers_, LayersPerChunk(static_cast<int>(shape_.layers), topology_));
    CAIRN_RETURN_IF_ERROR(CheckCoreLayers(layers_, topology_.virtual_stages));
    LeaveLoneMasters(tensors_);
    builder_.target.tensors = tensors_.tensors;
    for (int tp = 0; tp < topology_.tp; ++tp) {
      CAIRN_ASSIGN_OR_RETURN(const auto held, MegatronTensors(tensors_, shape_, topology_.tp, tp));
      for (int pp = 0; pp < topology_.pp; ++pp) AddRank(held, tp, pp);
    }
    builder_.Place();
    builder_.AddText(std::string(kMegatronTracker), std::to_string(state_.iteration));
    AddNotes();
    return TargetFiles{std::move(builder_.target), "", std::move(state_.notes)};
  }

 private:
  Status CheckOptimizer() {
    CAIRN_RETURN_IF_ERROR(FitOptimizer(tensors_, Steps::kOne, options_.allow_optimizer, state_));
    CAIRN_RETURN_IF_ERROR(RequireFp32States(tensors_));
    if (topology_.zero > 1)
      return InvalidArgument("Megatron-LM has no ZeRO {}; choose --zero 1, its distributed optimizer, or 0",
                             topology_.zero);
    if (!tensors_.optimizer) return OkStatus();
    CAIRN_RETURN_IF_ERROR(ChooseCoreGroups(tensors_, options_.allow_optimizer, state_));
    CAIRN_RETURN_IF_ERROR(CheckCoreMoments(tensors_));
    for (const TrainingParameter& parameter : tensors_.parameters)
      if (!parameter.master)
        return NotSupported(
            "{} has no fp32 master: Megatron's mixed precision optimizer needs all of them; choose --dtype "
            "bf16 if the weights are fp32",
            parameter.spec.name);
    return OkStatus();
  }

  // ---- What a stage holds.

  std::string NameOf(const MegatronTensor& tensor, int first_layer) const {
    const CoreModule& module = CoreModuleOf(tensor);
    const std::string prefix =
        InLayer(tensor) ? fmt::format("decoder.layers.{}.", tensor.layer - first_layer) : "";
    return fmt::format("{}{}{}", prefix, options_.local_spec ? module.local : module.fused, tensor.Kind());
  }

  // The place of a tensor in its layer. The norm before attention is the first of all if it is a module of
  // its own.
  int OrderOf(const MegatronTensor& tensor) const {
    if (options_.local_spec && tensor.module == "input_layernorm") return -1;
    const auto modules = CoreLayerModules();
    return static_cast<int>(std::ranges::find(modules, tensor.module, &CoreModule::module) - modules.begin());
  }

  Chunk ChunkOf(std::vector<MegatronTensor> tensors, int index) const {
    const int chunks = static_cast<int>(layers_.size());
    int first_layer = 0;
    for (int c = 0; c < index; ++c) first_layer += layers_[c];
    std::ranges::stable_sort(tensors, {}, [this](const MegatronTensor& t) {
      return std::pair(t.layer, InLayer(t) ? OrderOf(t) : 0);
    });
    Chunk chunk;
    for (const MegatronTensor& tensor : tensors) {
      const bool here = StageOf(tensor.layer, layers_) == index;
      // The last of several stages holds the tied embedding again, as its head.
      const bool head =
          shape_.tied && tensor.module == "word_embeddings" && chunks > 1 && index + 1 == chunks;
      if (!here && !head) continue;
      const std::string name = head ? kHead : NameOf(tensor, first_layer);
      Held held{name, {.name = name, .shape = tensor.shape, .parts = tensor.parts, .file_name = {}}, ""};
      if (head || CoreModuleOf(tensor).linear)
        held.extra_state = name.substr(0, name.rfind('.')) + "._extra_state";
      chunk.push_back(std::move(held));
    }
    const auto tied_head = std::ranges::find(chunk, kHead, &Held::name);
    if (tied_head != chunk.end()) std::rotate(tied_head, tied_head + 1, chunk.end());
    return chunk;
  }

  // ---- A rank's file.

  void AddRank(const std::vector<MegatronTensor>& tensors, int tp, int pp) {
    std::vector<Chunk> chunks;
    for (int c = pp; c < static_cast<int>(layers_.size()); c += topology_.pp)
      chunks.push_back(ChunkOf(tensors, c));
    const std::string rank =
        topology_.pp == 1 ? fmt::format("{:02}", tp) : fmt::format("{:02}_{:03}", tp, pp);
    const std::string directory = fmt::format("{}/mp_rank_{}/", IterationName(state_.iteration), rank);
    const uint32_t zip = builder_.BeginTorchFile(directory + "model_optim_rng.pt");
    PickleEmitter& p = builder_.pickle(zip);
    p.BeginDict();
    p.Text("args");
    EmitNamespace(p, Arguments(), tensors_.weight_type());
    p.Entry("checkpoint_version", 3.0);
    p.Entry("iteration", state_.iteration);
    for (size_t c = 0; c < chunks.size(); ++c) {
      p.Text(chunks.size() == 1 ? "model" : fmt::format("model{}", c));
      EmitModel(zip, chunks[c]);
    }
    if (tensors_.optimizer) EmitOptimizer(zip, chunks);
    p.Entry("opt_param_scheduler", CoreSchedule(state_));
    p.Entry("num_floating_point_operations_so_far", 0);
    p.EndDict();
    if (distributed()) AddBuffers(chunks, directory + "distrib_optim.pt");
  }

  nlohmann::json Arguments() const {
    nlohmann::json arguments = CoreArguments(source_.manifest(), shape_, topology_, layers_, state_);
    arguments["ckpt_format"] = "torch";
    arguments["use_distributed_optimizer"] = distributed();
    arguments["transformer_impl"] = options_.local_spec ? "local" : "transformer_engine";
    return arguments;
  }

  void EmitModel(uint32_t zip, const Chunk& chunk) {
    PickleEmitter& p = builder_.pickle(zip);
    p.BeginOrderedDict();
    for (size_t i = 0; i < chunk.size(); ++i) {
      p.Text(chunk[i].name);
      EmitArray(zip, chunk[i].tensor, Role::kWeight);
      const bool last = i + 1 == chunk.size() || chunk[i + 1].extra_state != chunk[i].extra_state;
      if (last && !chunk[i].extra_state.empty()) p.Entry(chunk[i].extra_state, nullptr);
    }
    p.EndDict();
  }

  void EmitArray(uint32_t zip, const LocalTensor& tensor, Role role) {
    const TrainingParameter& parameter = tensors_.parameters[tensor.parts[0].parameter];
    const Dtype dtype = role == Role::kWeight ? tensors_.tensors[parameter.weight].entry.dtype : Dtype::kF32;
    AddParts(tensors_, tensor, role, builder_.EmitArray(zip, dtype, tensor.shape), builder_.target);
  }

  // A fused tensor's parameters are of one group: matrices all of them, or vectors.
  std::vector<std::vector<const LocalTensor*>> Groups(const std::vector<Chunk>& chunks) const {
    std::vector<std::vector<const LocalTensor*>> groups(state_.groups.size());
    for (const Chunk& chunk : chunks)
      for (const Held& held : chunk)
        groups[state_.groups.GroupOf(tensors_.parameters[held.tensor.parts[0].parameter].spec.name)]
            .push_back(&held.tensor);
    return groups;
  }

  bool distributed() const { return tensors_.optimizer && topology_.zero == 1; }

  void EmitOptimizer(uint32_t zip, const std::vector<Chunk>& chunks) {
    const auto groups = Groups(chunks);
    PickleEmitter& p = builder_.pickle(zip);
    p.Text("optimizer");
    p.BeginDict();
    p.Text("optimizer");
    p.BeginDict();
    if (!distributed()) EmitStates(zip, groups);
    p.Text("param_groups");
    EmitGroups(p, groups);
    p.EndDict();
    if (tensors_.weight_type() == Dtype::kF16) EmitCoreGradScaler(zip, state_, builder_);
    if (!distributed()) EmitMasters(zip, groups);
    p.EndDict();
  }

  // torch's AdamW looks for its step in each state; Transformer Engine's Adam fails if it is there.
  void EmitStates(uint32_t zip, const std::vector<std::vector<const LocalTensor*>>& groups) {
    PickleEmitter& p = builder_.pickle(zip);
    p.Text("state");
    p.BeginDict();
    int64_t id = 0;
    for (const auto& group : groups)
      for (const LocalTensor* tensor : group) {
        p.Int(id++);
        p.BeginDict();
        if (options_.local_spec) {
          p.Text("step");
          builder_.EmitScalar(zip, static_cast<float>(state_.optimizer_step));
        }
        for (const auto& [role, name] :
             {std::pair(Role::kExpAvg, "exp_avg"), std::pair(Role::kExpAvgSq, "exp_avg_sq")}) {
          p.Text(name);
          EmitArray(zip, *tensor, role);
        }
        p.EndDict();
      }
    p.EndDict();
  }

  void EmitMasters(uint32_t zip, const std::vector<std::vector<const LocalTensor*>>& groups) {
    PickleEmitter& p = builder_.pickle(zip);
    p.Text("fp32_from_fp16_params");
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
      if (!distributed()) {
        EmitParamGroup(p, state_, g, ids, CoreGroupOwn(state_, g));
        continue;
      }
      nlohmann::json group = ParamGroup(state_, g);
      group.update(CoreGroupOwn(state_, g));
      p.BeginDict();
      EmitHyperParameters(p, group);
      p.EndDict();
    }
    p.EndList();
  }

  void AddBuffers(const std::vector<Chunk>& chunks, const std::string& file) {
    std::vector<BufferChunk> buffers;
    for (const Chunk& chunk : chunks) {
      BufferChunk& buffer = buffers.emplace_back();
      for (const Held& held : chunk) {
        const bool embedding = held.name == "embedding.word_embeddings.weight" || held.name == kHead;
        buffer.push_back({&held.tensor, embedding && shape_.tied && topology_.pp > 1});
      }
    }
    const Dtype weights = tensors_.weight_type();
    AddDistribOptim(tensors_, buffers, weights == Dtype::kF16 ? weights : Dtype::kF32, file, builder_);
    fits_all_buckets_ &= FitsAllBuckets(buffers);
  }

  void AddNotes() {
    state_.notes.push_back("random states are not carried; start with --no-load-rng");
    if (!fits_all_buckets_)
      state_.notes.push_back("some sizes are no multiples of 64; start without --overlap-grad-reduce");
    if (distributed() && tensors_.weight_type() == Dtype::kF16)
      state_.notes.push_back("start without --accumulate-allreduce-grads-in-fp32");
    AddCoreNotes(tensors_.optimizer, distributed(), options_.local_spec,
                 tensors_.weight_type() == Dtype::kF16, state_);
  }

  const CheckpointSource& source_;
  const TargetOptions& options_;
  TrainingState state_;
  const Topology topology_;
  TrainingTensors tensors_;
  MegatronShape shape_;
  std::vector<int> layers_;  // of each chunk
  bool fits_all_buckets_ = true;
  TargetBuilder builder_;
};

}  // namespace

Result<TargetFiles> PlanMegatron(const CheckpointSource& source, const TargetOptions& options) {
  return MegatronPlanner(source, options).Plan();
}

}  // namespace cairn
