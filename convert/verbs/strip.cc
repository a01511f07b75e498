// The plan says which tensor is read for each parameter, and the type of each written tensor. A release is
// then files of another system, any other result a native step.

#include "convert/verbs/strip.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ckpt/base/glob.h"
#include "ckpt/model/canonical_modules.h"
#include "convert/foreign/account.h"
#include "convert/foreign/shared_parameters.h"
#include "convert/formats/hugging_face/block_scaled.h"
#include "convert/formats/hugging_face/quantized_source.h"
#include "convert/formats/hugging_face/release_plan.h"

namespace cairn {
namespace {

struct WeightsPlan {
  std::vector<WrittenTensor> weights;  // one a parameter, then those under second names
  size_t parameters = 0;               // that have a weight of their own
  std::set<uint32_t> kept;             // tensors of the source that become fp32 by a glob
  ForeignModel model;
  std::vector<std::string> notes;  // what the result lacks
};

bool MatchesAnyOf(const std::vector<std::string>& globs, const std::string& name, std::vector<bool>& used) {
  bool matches = false;
  for (size_t i = 0; i < globs.size(); ++i) {
    if (!FitsGlob(name, globs[i])) continue;
    matches = true;
    used[i] = true;
  }
  return matches;
}

bool IsInteger(Dtype dtype) { return dtype >= Dtype::kI64 && dtype <= Dtype::kBool; }

// The type of a weight if numbers are rounded to `asked`: counters, masks and quantized values stay as they
// are.
Dtype TypeOf(Dtype stored, Dtype asked) { return IsInteger(stored) ? stored : asked; }

// A tensor of the result has one type, and so have those of one tensor of the source: a glob that keeps one
// in fp32 keeps all.
Status ChooseTypes(const StripOptions& options, WeightsPlan& plan) {
  std::unordered_map<std::string_view, const WrittenTensor*> weight_of;
  for (const WrittenTensor& weight : plan.weights) weight_of.emplace(weight.entry.spec.name, &weight);
  std::vector<bool> used(options.keep_fp32.size());
  for (const ForeignTensor& tensor : plan.model.tensors) {
    bool keep = MatchesAnyOf(options.keep_fp32, tensor.name, used);
    for (const ForeignPart& part : tensor.parts)
      keep |= MatchesAnyOf(options.keep_fp32, part.parameter, used);
    for (const ForeignPart& part : tensor.parts)
      if (keep) plan.kept.insert(weight_of.at(part.parameter)->source);
  }
  for (WrittenTensor& weight : plan.weights)
    if (plan.kept.contains(weight.source)) weight.entry.dtype = TypeOf(weight.entry.dtype, Dtype::kF32);
  for (const ForeignTensor& tensor : plan.model.tensors) {
    const Dtype dtype = weight_of.at(tensor.parts[0].parameter)->entry.dtype;
    for (const ForeignPart& part : tensor.parts)
      if (const Dtype other = weight_of.at(part.parameter)->entry.dtype; other != dtype)
        return NotSupported("{} would have parts of different types ({}, {}); choose one type with --dtype",
                            tensor.name, Name(dtype), Name(other));
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      return InvalidArgument("--keep-fp32 {} matches no tensor; cairn inspect lists them",
                             options.keep_fp32[i]);
  return OkStatus();
}

// The type of most bytes, among those in which a model computes.
Dtype MainType(const std::vector<WrittenTensor>& weights) {
  std::map<Dtype, uint64_t> bytes;
  for (const WrittenTensor& weight : weights)
    if (CanCast(weight.entry.dtype, Dtype::kF32)) bytes[weight.entry.dtype] += weight.entry.bytes();
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& row) { return row.second; });
  return most == bytes.end() ? Dtype::kF32 : most->first;
}

std::vector<ParameterSpec> ReleasedParameters(const CheckpointSource& source) {
  std::vector<ParameterSpec> parameters = source.catalog().Parameters();
  const std::vector<std::string> paths = OptimizerPaths(source.manifest());
  std::erase_if(parameters, [&](const ParameterSpec& spec) { return IsBelowAny(spec.name, paths); });
  const std::set<std::string> alone = OrphanStates(source.catalog());
  std::erase_if(parameters, [&](const ParameterSpec& spec) { return alone.contains(spec.name); });
  return parameters;
}

Result<WeightsPlan> PlanWeights(const CheckpointSource& source, const StripOptions& options) {
  const TensorTable& catalog = source.catalog();
  const TensorLookup lookup(catalog);
  WeightsPlan plan;
  std::vector<ParameterSpec> parameters = ReleasedParameters(source);
  if (parameters.empty()) return NotFound("{}: it does not contain weights", source.name());
  const Role first = options.dtype ? Role::kMaster : Role::kWeight;
  const Role second = options.dtype ? Role::kWeight : Role::kMaster;
  for (const ParameterSpec& spec : parameters) {
    Result<uint32_t> tensor = lookup.Find(spec.name, first);
    if (!tensor.ok()) tensor = lookup.Find(spec.name, second);
    if (!tensor.ok()) return tensor.status();
    const Dtype stored = catalog.tensors[*tensor].dtype;
    const CanonicalModule* module = ModuleOfParameter(spec.name);
    const bool keeps_type = !options.dtype || (module && module->keeps_type);
    plan.weights.push_back(
        {*tensor, {spec, Role::kWeight, keeps_type ? stored : TypeOf(stored, *options.dtype)}});
  }
  plan.parameters = plan.weights.size();
  const auto repeat = [&](const std::string& name, const std::string& first) {
    const auto name_of = [](const WrittenTensor& weight) { return weight.entry.spec.name; };
    plan.weights.push_back(*std::ranges::find(plan.weights, first, name_of));
    plan.weights.back().entry.spec.name = name;
    parameters.push_back(plan.weights.back().entry.spec);
  };
  if (options.format->every_name)
    for (const auto& [spec, first] : SecondNames(source.manifest(), source.catalog()))
      repeat(spec.name, first);
  CAIRN_ASSIGN_OR_RETURN(
      plan.model, options.format->release(source.manifest().model, MainType(plan.weights), parameters));
  if (options.quantize)  // whose source sums what it reads, once
    std::erase_if(plan.model.tensors,
                  [&](const ForeignTensor& tensor) { return plan.model.copies.contains(tensor.name); });
  else
    for (const auto& [copy, original] : plan.model.copies) {
      repeat(copy, original);
      plan.weights.back().read_back = false;
    }
  const auto is_code = [](const auto& copy) { return copy.first.ends_with(".py"); };
  if (std::ranges::none_of(options.copies, is_code) && LeaveOutCode(plan.model))
    plan.notes.push_back(
        fmt::format("config.json has no auto_map: the code that it named is not beside {}", source.name()));
  CAIRN_RETURN_IF_ERROR(CheckAgainst(plan.model, parameters).WithContext(source.name()));
  CAIRN_RETURN_IF_ERROR(ChooseTypes(options, plan));
  for (const auto& [source, entry, read_back] : plan.weights) {
    const TensorEntry& tensor = catalog.tensors[source];
    if (tensor.dtype != entry.dtype && !CanCast(tensor.dtype, entry.dtype))
      return NotSupported(
          "tensor {} is {}; fp32, bf16 and fp16 are cast to others, and cairn convert without --dtype keeps "
          "it",
          DisplayName(tensor), Name(tensor.dtype));
  }
  return plan;
}

// The source's history and what this strip adds.
nlohmann::json HistoryOf(const CheckpointSource& source, const StripOptions& options) {
  const Manifest& manifest = source.manifest();
  nlohmann::json history = manifest.history;
  for (const std::string& name : OrphanStates(source.catalog()))
    history.push_back(fmt::format("left out the optimizer's states of {}, which has no weight", name));
  for (const std::string& path : OptimizerPaths(manifest))
    history.push_back(fmt::format("left out {}, an optimizer's state", path));
  if (options.dtype && options.on_overflow == OnOverflow::kSaturate)
    history.push_back(fmt::format(
        "values beyond the range of {} became its largest finite number (--saturate)", Name(*options.dtype)));
  if (options.quantize)
    history.push_back("weights of linear layers became fp8 with a scale for each 128 x 128 (--quantize fp8)");
  return history;
}

void AddProvenance(const CheckpointSource& source, const StripOptions& options,
                   SafetensorsMetadata& metadata) {
  const Manifest& manifest = source.manifest();
  metadata["cairn.version"] = CAIRN_VERSION;
  metadata["cairn.run"] = manifest.run;
  metadata["cairn.step"] = std::to_string(manifest.step);
  metadata[kSourceFingerprintKey] = "";
  if (options.quantize) metadata[kQuantizationErrorKey] = "";
  if (!options.command.empty()) metadata["cairn.command"] = options.command;
  const nlohmann::json history = HistoryOf(source, options);
  if (!history.empty()) metadata["cairn.history"] = history.dump();
}

using Target = std::variant<StepTarget, FilesTarget>;

Result<Target> PlanStep(const CheckpointSource& source, WeightsPlan& plan, const StripOptions& options) {
  std::vector<TensorEntry> tensors;
  for (const WrittenTensor& weight : plan.weights) tensors.push_back(weight.entry);
  CAIRN_ASSIGN_OR_RETURN(StepPlan shards,
                         StepPlan::Make(tensors, source.manifest().model,
                                        options.topology.value_or(source.manifest().topology)));
  StepInfo info = StepInfo::Of(source.manifest(), shards.topology());
  info.history = HistoryOf(source, options);
  return Target(
      StepTarget{.info = std::move(info), .tensors = std::move(plan.weights), .plan = std::move(shards)});
}

Result<Target> PlanFiles(const CheckpointSource& source, WeightsPlan& plan, const StripOptions& options) {
  AddProvenance(source, options, plan.model.metadata);
  CAIRN_ASSIGN_OR_RETURN(StoredTarget files, PlanRelease(plan.model, std::move(plan.weights),
                                                         options.max_file_bytes, options.copies));
  return Target(FilesTarget{
      .files = std::move(files), .reader = std::string(options.format->reader), .sha256sums = true});
}

}  // namespace

Status CheckQuantize(const StripOptions& options) {
  if (!options.quantize || options.format->release == HuggingFaceModel) return OkStatus();
  return InvalidArgument("--quantize is only for hf: {} has no form for quantized weights",
                         options.format->name);
}

Result<Transfer> PlanStrip(CheckpointSource& source, const StripOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckQuantize(options));
  if (options.dtype || options.quantize || !options.keep_fp32.empty())
    CAIRN_RETURN_IF_ERROR(CheckReadable(source));
  CAIRN_ASSIGN_OR_RETURN(WeightsPlan plan, PlanWeights(source, options));
  std::vector<std::string> left_behind;  // by a quantized source
  std::shared_ptr<QuantizedSource> quantized;
  if (options.quantize) {
    left_behind = ValuesLeftBehind(source, plan.weights);
    CAIRN_ASSIGN_OR_RETURN(auto release,
                           QuantizedSource::Of(source, plan.kept, std::move(plan.model), plan.weights));
    quantized = std::move(release.source);
    plan.model = std::move(release.model);
    plan.weights = std::move(release.weights);
    plan.parameters = plan.weights.size() - 2 * quantized->quantized();
  }
  CAIRN_ASSIGN_OR_RETURN(auto target, options.format->is_native() ? PlanStep(source, plan, options)
                                                                  : PlanFiles(source, plan, options));
  CheckpointSource& read = quantized ? *quantized : source;
  Transfer transfer(read, std::move(target), options.writer);
  if (quantized) {
    transfer.left_behind = std::move(left_behind);
    transfer.quantization = [quantized] { return quantized->Outcome(); };
  }
  transfer.cast.on_overflow = options.on_overflow;
  transfer.reported = plan.parameters;
  transfer.notes = std::move(plan.notes);
  return transfer;
}

std::set<std::string> OrphanStates(const TensorTable& table) {
  std::set<std::string> names;
  for (const TensorEntry& tensor : table.tensors)
    if (!IsOpaque(tensor.role)) names.insert(tensor.spec.name);
  for (const TensorEntry& tensor : table.tensors)
    if (tensor.role == Role::kWeight || tensor.role == Role::kMaster) names.erase(tensor.spec.name);
  return names;
}

}  // namespace cairn
