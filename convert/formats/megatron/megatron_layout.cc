// The builder goes through the table of modules in the order in which the programs register them: before the
// layers, in each layer, behind them. It fuses what the table fuses, and notes for each rank's tensor which
// box of which parameter fills which rows. A parameter that no module took is an error at the end, so
// nothing is lost silently. The rest of the file derives the model's sizes, and the arguments of a training,
// from the manifest.

#include "convert/formats/megatron/megatron_layout.h"

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/model/manifest.h"
#include "convert/families/foreign_model.h"
#include "convert/families/hugging_face_config.h"
#include "convert/foreign/config_model.h"
#include "convert/formats/megatron/megatron_modules.h"

namespace cairn {
namespace {

Box Rows(const Dims& shape, uint64_t begin, uint64_t count) {
  Box box = Box::Whole(shape);
  box.offset[0] = begin;
  box.extent[0] = count;
  return box;
}

class Builder {
 public:
  Builder(const TrainingTensors& tensors, const MegatronShape& shape, int tp, int rank)
      : tensors_(tensors),
        shape_(shape),
        groups_(static_cast<uint64_t>(shape.KvHeads())),
        ffn_(static_cast<uint64_t>(shape.Ffn())),
        tp_(static_cast<uint64_t>(tp)),
        rank_(static_cast<uint64_t>(rank)) {
    for (size_t i = 0; i < tensors.parameters.size(); ++i) index_[tensors.parameters[i].spec.name] = i;
  }

  Result<std::vector<MegatronTensor>> Build() {
    if (groups_ % tp_ != 0 || ffn_ % tp_ != 0)
      return InvalidArgument(
          "TP={} does not divide {} key and value heads and {} FFN units; choose a TP that does", tp_,
          groups_, ffn_);
    CAIRN_RETURN_IF_ERROR(AddAll(MegatronPlace::kBeforeLayers, kBeforeLayers));
    for (int layer = 0; layer < shape_.layers; ++layer)
      CAIRN_RETURN_IF_ERROR(AddAll(MegatronPlace::kInLayer, layer));
    CAIRN_RETURN_IF_ERROR(AddAll(MegatronPlace::kAfterLayers, kAfterLayers));
    for (const auto& [name, index] : index_)
      if (!used_.contains(index)) return NotSupported("tensor {} has no place in Megatron's GPT", name);
    return std::move(result_);
  }

 private:
  Status AddAll(MegatronPlace place, int layer) {
    for (const MegatronModule& module : MegatronModules()) {
      if (module.place != place) continue;
      for (const bool bias : {false, true}) CAIRN_RETURN_IF_ERROR(Add(module, bias, layer));
    }
    return OkStatus();
  }

  // The parameters of a module, those that there are.
  std::vector<size_t> Find(const MegatronModule& module, bool bias, int layer) const {
    std::vector<size_t> found;
    const bool inside = layer != kBeforeLayers && layer != kAfterLayers;
    for (const std::string_view name : module.canonical) {
      const std::string full = fmt::format("{}{}.{}", inside ? fmt::format("layers.{}.", layer) : "", name,
                                           bias ? "bias" : "weight");
      if (const auto at = index_.find(full); at != index_.end()) found.push_back(at->second);
    }
    return found;
  }

  const Dims& ShapeOf(size_t parameter) const { return tensors_.parameters[parameter].spec.shape; }

  Status Add(const MegatronModule& module, bool bias, int layer) {
    const std::vector<size_t> found = Find(module, bias, layer);
    if (found.empty()) return OkStatus();
    used_.insert(found.begin(), found.end());
    MegatronTensor tensor{
        .module = std::string(module.name), .bias = bias, .layer = layer, .shape = {}, .parts = {}};
    const bool fits = module.is_qkv()       ? AddQkv(found, tensor)
                      : module.is_gate_up() ? AddGateUp(found, tensor)
                                            : AddOne(module, found[0], tensor);
    if (!fits)
      return Corrupt("tensor {} has shape {}, which the model's sizes do not make",
                     tensors_.parameters[found[0]].spec.name, ToString(ShapeOf(found[0])));
    result_.push_back(std::move(tensor));
    return OkStatus();
  }

  bool AddQkv(const std::vector<size_t>& found, MegatronTensor& tensor) const {
    const auto d = static_cast<uint64_t>(shape_.HeadDim()), heads = static_cast<uint64_t>(shape_.heads);
    const uint64_t share = heads / groups_, local = groups_ / tp_;
    if (found.size() != 3) return false;
    const uint64_t rows[] = {share * d, d, d};  // of a group
    for (size_t i = 0; i < 3; ++i)
      if (ShapeOf(found[i])[0] != rows[i] * groups_) return false;
    tensor.tp_dim = 0;
    tensor.shape = ShapeOf(found[0]);
    tensor.shape[0] = local * (share + 2) * d;
    for (uint64_t group = 0, at = 0; group < local; ++group)
      for (size_t i = 0; i < 3; at += rows[i++])
        tensor.parts.push_back({{Rows(ShapeOf(found[i]), (rank_ * local + group) * rows[i], rows[i]),
                                 Rows(tensor.shape, at, rows[i])},
                                found[i]});
    return true;
  }

  bool AddGateUp(std::vector<size_t> found, MegatronTensor& tensor) const {
    if (shape_.has.gate != (found.size() == 2)) return false;
    if (shape_.gate_last) std::ranges::reverse(found);
    const uint64_t units = ffn_ / tp_;
    tensor.tp_dim = 0;
    tensor.gated = shape_.has.gate;
    tensor.shape = ShapeOf(found[0]);
    tensor.shape[0] = units * found.size();
    for (size_t i = 0; i < found.size(); ++i) {
      if (ShapeOf(found[i])[0] != ffn_) return false;
      tensor.parts.push_back(
          {{Rows(ShapeOf(found[i]), rank_ * units, units), Rows(tensor.shape, i * units, units)}, found[i]});
    }
    return true;
  }

  bool AddOne(const MegatronModule& module, size_t parameter, MegatronTensor& tensor) const {
    const Dims& whole = ShapeOf(parameter);
    tensor.shape = whole;
    tensor.vocabulary = module.is_vocabulary();
    Box source = Box::Whole(whole);
    tensor.tp_dim = CutDim(module.cut_as(), tensor.bias);
    if (tensor.tp_dim != kReplicated) {
      const int d = tensor.tp_dim;
      if (d >= whole.rank()) return false;
      const uint64_t size =
          tensor.vocabulary ? static_cast<uint64_t>(shape_.PaddedVocab(static_cast<int64_t>(tp_))) : whole[d];
      if (size % tp_ != 0) return false;
      tensor.shape[d] = size / tp_;
      source.offset[d] = std::min(whole[d], rank_ * tensor.shape[d]);
      source.extent[d] = std::min(whole[d] - source.offset[d], tensor.shape[d]);
    }
    tensor.parts.push_back({{source, Box::Whole(source.extent)}, parameter});
    return true;
  }

  const TrainingTensors& tensors_;
  const MegatronShape& shape_;
  const uint64_t groups_;
  const uint64_t ffn_;
  const uint64_t tp_;
  const uint64_t rank_;
  std::map<std::string, size_t> index_;
  std::set<size_t> used_;
  std::vector<MegatronTensor> result_;
};

}  // namespace

Result<MegatronShape> MegatronShapeOf(const nlohmann::json& model, const TrainingTensors& tensors) {
  if (const std::string family = FamilyWithoutTable(model); !family.empty())
    return NotSupported(
        "no table knows {}, so Megatron's names for its tensors are unknown; hf, safetensors, dcp "
        "and native keep its own",
        family);
  for (const char* size : {"num_layers", "hidden_size", "num_attention_heads", "vocab_size"})
    if (IntField(model, size) <= 0)
      return NotSupported(
          "it does not say which model it is, which Megatron's formats need; --config FILE names the "
          "config.json of a transformers model");
  CAIRN_ASSIGN_OR_RETURN(ModelShape shape, ReadShape(model));
  std::set<std::string_view> names;
  for (const TrainingParameter& parameter : tensors.parameters) {
    names.insert(parameter.spec.name);
    if (parameter.spec.name == "embedding.word.weight" && parameter.spec.pad_multiple > 0)
      shape.vocab_multiple = static_cast<int64_t>(parameter.spec.pad_multiple);
  }
  shape.tied = !names.contains("output.weight");
  shape.has = TensorsAmong(names);
  return MegatronShape{shape};
}

Result<std::vector<MegatronTensor>> MegatronTensors(const TrainingTensors& tensors,
                                                    const MegatronShape& shape, int tp, int tp_rank) {
  return Builder(tensors, shape, tp, tp_rank).Build();
}

Status CheckMegatronModel(const nlohmann::json& model, const TrainingTensors& tensors,
                          const MegatronShape& shape) {
  ModelShape asked = shape;
  CAIRN_ASSIGN_OR_RETURN(asked.has, CheckFunctionArguments(CompleteModel(model), shape.program,
                                                           MegatronArguments(model, shape, {})));
  if (std::cmp_greater(shape.layers, tensors.parameters.size()))
    return Corrupt("the model says that it has {} layers, and there are {} tensors", shape.layers,
                   tensors.parameters.size());
  std::set<std::string> wanted;
  for (const ParameterSpec& spec : GptSpecs(asked)) wanted.insert(spec.name);
  std::vector<std::string> ignored;
  for (const TrainingParameter& parameter : tensors.parameters)
    if (wanted.erase(parameter.spec.name) == 0) ignored.push_back(parameter.spec.name);
  if (wanted.empty() && ignored.empty()) return OkStatus();
  std::string differences;
  if (!ignored.empty()) differences = "ignore " + ShortList(ignored);
  if (!wanted.empty())
    differences += fmt::format("{}ask for {}", ignored.empty() ? "" : ", and ",
                               ShortList({wanted.begin(), wanted.end()}));
  return NotSupported(
      "no arguments of {} describe this model: it would {}; --to dcp and --to native keep every tensor",
      NameOf(shape.program), differences);
}

nlohmann::json MegatronArguments(const nlohmann::json& model, const MegatronShape& shape,
                                 const Topology& topology) {
  nlohmann::json args = {
      {"num_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"ffn_hidden_size", shape.ffn},
      {"num_attention_heads", shape.heads},
      {"kv_channels", shape.head_dim},
      {"group_query_attention", shape.kv_heads != shape.heads},
      {"num_query_groups", shape.kv_heads},
      {"num_key_value_heads", shape.kv_heads},
      {"vocab_size", shape.vocab},
      {"padded_vocab_size", shape.PaddedVocab(topology.tp)},
      {"make_vocab_size_divisible_by", shape.vocab_multiple},
      {"untie_embeddings_and_output_weights", !shape.tied},
      {"add_bias_linear", shape.has.mlp_bias},
      {"add_qkv_bias", shape.has.query_key_value_bias},
      {"qk_layernorm", shape.has.query_key_norm},
      {"tensor_model_parallel_size", topology.tp},
      {"pipeline_model_parallel_size", topology.pp},
      {"data_parallel_size", topology.dp},
      {"world_size", topology.world()},
      {"expert_model_parallel_size", 1},
      {"context_parallel_size", 1},
      {"virtual_pipeline_model_parallel_size", nullptr},
      {"num_layers_per_virtual_pipeline_stage", nullptr},
      {"num_experts", nullptr},
  };
  if (shape.positions > 0) args["max_position_embeddings"] = args["seq_length"] = shape.positions;
  if (shape.gate_last) args["glu_activation"] = "swiglu";
  if (shape.bigscience) args["embed_layernorm"] = shape.has.embedding_norm;
  AddFunctionArguments(CompleteModel(model), shape.program, args);
  return args;
}

}  // namespace cairn
