// Names differ by program, content does not: megatron_layout.h makes the tensors of each TP rank, and this
// file names them and deals them to pipeline stages. A pipeline numbers its layers with the functions around
// them, which differ in BigScience's fork. The last stage holds a tied embedding again, as a copy: the
// optimizer has it, layer files do not. A model of unknown family has one rank and keeps its own names.

#include "convert/formats/megatron_model/local_model.h"

#include "ckpt/model/placement.h"

namespace cairn {
namespace {

// Where a pipeline of Megatron-DeepSpeed counts its layers: 0 is a cast without parameters, 1 the embedding.
// BigScience's fork has a function before the transformer's layers and one after them.
struct PipelineIndices {
  int first_layer = 2;
  int final_norm = 2;  // after the last layer
};
PipelineIndices IndicesOf(bool bigscience, int layers) {
  return bigscience ? PipelineIndices{3, layers + 4} : PipelineIndices{2, layers + 2};
}

std::string PipelineName(const LocalTensor& tensor, bool tied_embedding) {
  return (tied_embedding ? "tied_modules.embed." : fmt::format("{}.", tensor.pipeline_layer)) +
         tensor.file_name;
}

std::string NameWithin(const MegatronShape& shape, const MegatronTensor& tensor) {
  return shape.dialect.Name(*tensor.module, MegatronLayer::kDense, tensor.bias);
}

std::string LanguageName(const MegatronShape& shape, const MegatronTensor& tensor) {
  const std::string rest = NameWithin(shape, tensor);
  if (tensor.module->canonical[0] == "output") return "language_model." + rest;
  if (tensor.layer == kBeforeLayers) return "language_model.embedding." + rest;
  if (tensor.layer == kAfterLayers) return "language_model.encoder." + rest;
  return fmt::format("language_model.encoder.layers.{}.{}", tensor.layer, rest);
}

void PlaceInPipeline(const MegatronShape& shape, LocalTensor& local) {
  const PipelineIndices at = IndicesOf(shape.dialect.bigscience, static_cast<int>(shape.layers));
  local.file_name = NameWithin(shape, local);
  if (local.layer == kBeforeLayers) {
    local.pipeline_layer = 1;
  } else if (local.layer != kAfterLayers) {
    local.pipeline_layer = at.first_layer + local.layer;
  } else if (local.module->canonical[0] == "output") {
    local.pipeline_layer = at.final_norm + 1;
    local.file_name = "lm_head.weight";
  } else {
    local.pipeline_layer = at.final_norm;
    local.file_name = local.Kind();
  }
  local.name = PipelineName(local, shape.tied && local.layer == kBeforeLayers);
}

std::vector<LocalTensor> HeldByStage(const std::vector<MegatronTensor>& tensors, const LocalModel& model,
                                     int pp, int stages) {
  std::vector<LocalTensor> held;
  for (const MegatronTensor& tensor : tensors) {
    LocalTensor local{tensor, LanguageName(model.shape, tensor)};
    if (model.names == LocalNames::kPipeline) {
      const bool last = pp + 1 == stages;
      const bool here = cairn::StageOf(tensor.layer, model.layers_per_stage) == pp;
      local.copy = !here && last && model.shape.tied && tensor.layer == kBeforeLayers;
      if (!here && !local.copy) continue;
      PlaceInPipeline(model.shape, local);
    }
    held.push_back(std::move(local));
  }
  return held;
}

LocalModel PlainModel(const TrainingTensors& tensors) {
  LocalModel model;
  std::vector<LocalTensor>& held = model.ranks.emplace_back();
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const ParameterSpec& spec = tensors.parameters[i].spec;
    const Box whole = Box::Whole(spec.shape);
    held.push_back({{.shape = spec.shape, .parts = {{{whole, whole}, i}}}, spec.name});
  }
  return model;
}

}  // namespace

Result<LocalModel> LocalModelOf(const CheckpointSource& source, const TrainingTensors& tensors,
                                const Topology& topology) {
  CAIRN_RETURN_IF_ERROR(Validate(topology));
  if (topology.virtual_stages != 1)
    return NotSupported("DeepSpeed's pipeline has no virtual stages; leave --virtual-stages out");
  const Model& described = source.manifest().model;
  if (described.empty()) {
    if (topology.tp != 1 || topology.pp != 1)
      return InvalidArgument("it does not record how the model is cut; choose --tp 1 --pp 1");
    return PlainModel(tensors);
  }
  LocalModel model;
  CAIRN_ASSIGN_OR_RETURN(model.shape, MegatronShapeOf(described, tensors));
  MegatronDialect& dialect = model.shape.dialect;
  dialect.program = MegatronProgram::kDeepSpeed;
  dialect.bigscience = described.position_embedding == "alibi";
  dialect.gate_last = dialect.bigscience && model.shape.IsGated();
  CAIRN_RETURN_IF_ERROR(CheckMegatronModel(described, tensors, model.shape));
  model.names = topology.zero >= 2 ? LocalNames::kLanguage : LocalNames::kPipeline;
  if (topology.zero >= 2 && topology.pp > 1)
    return InvalidArgument("DeepSpeed has no pipeline with ZeRO {}; choose --zero 1 or --pp 1",
                           topology.zero);
  CAIRN_ASSIGN_OR_RETURN(model.layers_per_stage,
                         LayersPerChunk(static_cast<int>(model.shape.layers), topology));
  std::vector<std::vector<MegatronTensor>> of_tp;
  for (int tp = 0; tp < topology.tp; ++tp) {
    CAIRN_ASSIGN_OR_RETURN(auto held, MegatronTensors(tensors, model.shape, topology, tp));
    of_tp.push_back(std::move(held));
  }
  for (int pp = 0; pp < topology.pp; ++pp)
    for (int tp = 0; tp < topology.tp; ++tp)
      model.ranks.push_back(HeldByStage(of_tp[tp], model, pp, topology.pp));
  return model;
}

void AddParts(const TrainingTensors& tensors, const LocalTensor& local, Role role, uint32_t array,
              StoredTarget& target) {
  for (const MegatronPart& part : local.parts)
    target.parts.push_back({part, tensors.parameters[part.parameter].TensorOf(role), array});
}

}  // namespace cairn
