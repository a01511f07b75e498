// The builder goes through the table of modules in the order in which the programs register them: before the
// layers, in each layer, after them. It notes for each rank's tensor which box of which parameter fills
// which rows. A parameter that no module took is an error at the end, so nothing is lost silently. The rest
// of the file derives the model's sizes, and the arguments of a training, from the manifest.

#include "convert/formats/megatron_model/megatron_layout.h"

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/base/short_list.h"
#include "ckpt/families/foreign_model.h"
#include "ckpt/families/hugging_face_config.h"
#include "ckpt/model/manifest.h"
#include "convert/formats/megatron_model/megatron_latent.h"

namespace cairn {
namespace {

class Builder {
 public:
  Builder(const TrainingTensors& tensors, const MegatronShape& shape, const Topology& topology, int rank)
      : tensors_(tensors), shape_(shape), topology_(topology), rank_(rank) {
    for (size_t i = 0; i < tensors.parameters.size(); ++i) index_[tensors.parameters[i].spec.name] = i;
  }

  Result<std::vector<MegatronTensor>> Build() {
    const int tp = topology_.tp;
    if (shape_.KvHeads() % tp != 0 || (shape_.modules.Has("mlp.up") && shape_.Ffn() % tp != 0))
      return InvalidArgument(
          "TP={} does not divide {} key and value heads and {} FFN units; choose a TP that does", tp,
          shape_.KvHeads(), shape_.Ffn());
    for (const int part : PartsOf(shape_))
      for (const MegatronModule& module : MegatronModules())
        for (const bool bias : {false, true})
          if (module.cut_as().place == PlaceOf(part)) CAIRN_RETURN_IF_ERROR(Add(module, bias, part));
    for (const auto& [name, index] : index_)
      if (!used_.contains(index)) return NotSupported("tensor {} has no place in Megatron's GPT", name);
    return std::move(result_);
  }

 private:
  const Dims& ShapeOf(size_t parameter) const { return tensors_.parameters[parameter].spec.shape; }

  Status Add(const MegatronModule& module, bool bias, int layer) {
    std::map<size_t, size_t> found;  // the parameter of each canonical module that has one
    for (size_t i = 0; i < module.canonical.size(); ++i)
      if (const auto at =
              index_.find(SpecOf(*FindCanonicalModule(module.canonical[i]), bias, layer, shape_).name);
          at != index_.end())
        found.emplace(i, at->second);
    // The query of latent attention is a module of its own.
    const bool latent = shape_.key_value_rank > 0, query = module.canonical[0] == "attention.query";
    if (found.empty() || (query && module.is_qkv() == latent)) return OkStatus();
    for (const auto& [canonical, parameter] : found) used_.insert(parameter);
    const size_t first = found.begin()->second;
    for (const auto& [canonical, parameter] : found)
      if (tensors_.parameters[parameter].roles() != tensors_.parameters[first].roles())
        return NotSupported(
            "{} and {} are one tensor in Megatron, but the optimizer keeps other states of one",
            tensors_.parameters[first].spec.name, tensors_.parameters[parameter].spec.name);
    MegatronTensor tensor{.module = &module,
                          .bias = bias,
                          .layer = layer,
                          .shape = ShapeOf(first),
                          .gated = module.is_gate_up() && shape_.IsGated()};
    for (const Cut& cut : module.cut_as().cuts)
      if (cut.dim < tensor.shape.rank()) tensor.cuts.push_back(cut);
    CAIRN_ASSIGN_OR_RETURN(const bool fits, SetSlice(found, tensor));
    if (!fits)
      return Corrupt("tensor {} has shape {}, which does not follow from the model's sizes",
                     tensors_.parameters[first].spec.name, ToString(ShapeOf(first)));
    result_.push_back(std::move(tensor));
    return OkStatus();
  }

  // Sets the rank's shape and the parts. False if the parameters are not those of the model's sizes. Errors:
  // InvalidArgument if the topology does not divide them.
  Result<bool> SetSlice(const std::map<size_t, size_t>& found, MegatronTensor& tensor) const {
    const MegatronModule& module = *tensor.module;
    for (const Cut& cut : tensor.cuts) {
      uint64_t& size = tensor.shape[cut.dim];
      if (module.is_qkv())
        size = static_cast<uint64_t>(shape_.QueryWidth() + 2 * shape_.KeyValueWidth());
      else if (module.is_gate_up() && cut.dim == module.gated_dim())
        size = static_cast<uint64_t>(module.cut_as().extents[cut.dim](shape_)) * (tensor.gated ? 2 : 1);
      else if (module.is_vocabulary())
        size = static_cast<uint64_t>(shape_.PaddedVocab(topology_.tp));
    }
    const ParameterSpec whole{.name = tensors_.parameters[found.begin()->second].spec.name,
                              .shape = tensor.shape,
                              .cuts = tensor.cuts};
    CAIRN_ASSIGN_OR_RETURN(const Slice slice, SliceOf(whole, topology_, rank_));
    tensor.shape = slice.shape;
    const auto parts =
        PartsOfSlice(module.name, {&module, tensor.bias}, tensor.shape, shape_, topology_, rank_);
    if (!parts.ok()) return false;
    std::set<size_t> filled;
    for (const SlicePart& part : *parts) {
      const auto parameter = found.find(part.canonical);
      if (parameter == found.end() || !(ShapeOf(parameter->second) == part.whole)) return false;
      filled.insert(part.canonical);
      tensor.parts.push_back({part, parameter->second});
    }
    return filled.size() == found.size();
  }

  const TrainingTensors& tensors_;
  const MegatronShape& shape_;
  const Topology& topology_;
  const int rank_;
  std::map<std::string, size_t> index_;
  std::set<size_t> used_;
  std::vector<MegatronTensor> result_;
};

}  // namespace

Result<MegatronShape> MegatronShapeOf(const Model& model, const TrainingTensors& tensors) {
  if (const std::string family = FamilyWithoutTable(model); !family.empty())
    return NotSupported(
        "the family {} is unknown, and so are Megatron's names for its tensors; the formats hf, safetensors, "
        "dcp and native keep its own names",
        family);
  if (!model.HasSizes())
    return NotSupported(
        "it does not say which model it is, but Megatron's formats need to know; name the config.json of a "
        "transformers model by --config FILE");
  CAIRN_ASSIGN_OR_RETURN(ModelShape shape, ReadShape(model));
  std::set<std::string_view> names;
  for (const TrainingParameter& parameter : tensors.parameters) {
    names.insert(parameter.spec.name);
    if (const Cut* cut = parameter.spec.padded(); cut && parameter.spec.name == "embedding.word.weight")
      shape.vocab_multiple = static_cast<int64_t>(cut->pad);
  }
  shape.tied = !names.contains("output.weight");
  shape.modules = DecoderModules::Among(names);
  return MegatronShape{shape};
}

Result<std::vector<MegatronTensor>> MegatronTensors(const TrainingTensors& tensors,
                                                    const MegatronShape& shape, const Topology& topology,
                                                    int rank) {
  return Builder(tensors, shape, topology, rank).Build();
}

Result<DecoderModules> ModulesOfProgram(const Model& model, const MegatronShape& shape) {
  return CheckFunctionArguments(CompleteModel(model), shape.dialect.program,
                                MegatronArguments(model, shape, {}));
}

Status CheckMegatronModel(const Model& model, const TrainingTensors& tensors, const MegatronShape& shape) {
  ModelShape asked = shape;
  CAIRN_ASSIGN_OR_RETURN(asked.modules, ModulesOfProgram(model, shape));
  if (std::cmp_greater(shape.layers, tensors.parameters.size()))
    return Corrupt("the model says that it has {} layers, but it has {} tensors", shape.layers,
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
      NameOf(shape.dialect.program), differences);
}

nlohmann::json MegatronArguments(const Model& model, const MegatronShape& shape, const Topology& topology) {
  nlohmann::json args = {
      {"group_query_attention", shape.kv_heads != shape.heads},
      {"padded_vocab_size", shape.PaddedVocab(topology.tp)},
      {"make_vocab_size_divisible_by", shape.vocab_multiple},
      {"untie_embeddings_and_output_weights", !shape.tied},
      {"add_bias_linear", shape.modules.HasBias("mlp.down") || shape.modules.HasBias("mlp.experts.down")},
      {"add_qkv_bias", shape.modules.HasBias("attention.query")},
      {"qk_layernorm",
       shape.modules.Has("attention.query_norm") || shape.modules.Has("attention.key_value_down_norm")},
      {"tensor_model_parallel_size", topology.tp},
      {"pipeline_model_parallel_size", topology.pp},
      {"data_parallel_size", topology.dp},
      {"world_size", topology.world()},
      {"expert_model_parallel_size", topology.ep},
      {"context_parallel_size", 1},
      {"virtual_pipeline_model_parallel_size", nullptr},
      {"num_layers_per_virtual_pipeline_stage", nullptr},
      {"num_experts", nullptr},
  };
  const bool mixture = shape.experts > 0 && shape.dialect.program == MegatronProgram::kCore;
  for (const SizeArgument& size : SizeArguments())
    if (mixture || !size.of_experts) args[size.name] = shape.*FieldOf(size.field).size;
  if (!shape.modules.Has("mlp.shared.up")) args.erase(kSharedExpertSize);
  if (mixture) {
    args["moe_grouped_gemm"] = true;
    args["expert_tensor_parallel_size"] = topology.size(Axis::kEtp);
    args["moe_shared_expert_gate"] = shape.modules.Has("mlp.shared_gate");
  }
  if (shape.dialect.program == MegatronProgram::kCore) {
    AddLatentSizes(shape, args);
    if (shape.mtp_layers > 0) args["mtp_num_layers"] = shape.mtp_layers;
  }
  if (shape.positions > 0) args["max_position_embeddings"] = args["seq_length"] = shape.positions;
  if (shape.dialect.gate_last) args["glu_activation"] = "swiglu";
  if (shape.dialect.bigscience) args["embed_layernorm"] = shape.modules.Has("embedding.norm");
  AddFunctionArguments(CompleteModel(model), shape.dialect.program, args);
  return args;
}

}  // namespace cairn
