// Each tensor of the files is one array and one part, whole and untransposed, so the only question is which
// parameter it is. Headers with our two keys answer it: rows in JSON, which must name every tensor of the
// files exactly once. Files without those keys are opened under their own names, and nothing is cut.

#include "convert/formats/hugging_face/safetensors.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ckpt/io/strict_json.h"
#include "ckpt/model/slice.h"
#include "convert/foreign/stored_builder.h"
#include "convert/formats/hugging_face/weight_files.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr const char* kModelKey = "cairn.model";
constexpr const char* kParametersKey = "cairn.parameters";

// One for each of the tensors.
Result<std::vector<ParameterSpec>> SpecsOf(const std::string& text, const std::vector<StoredArray>& tensors) {
  std::map<std::string, Dims, std::less<>> shapes;
  for (const StoredArray& tensor : tensors) shapes.emplace(tensor.name, tensor.shape);
  CAIRN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> parameters, DecodeParameters(text, shapes));
  for (const ParameterSpec& spec : parameters) shapes.erase(spec.name);
  if (!shapes.empty()) return Corrupt("tensor {} is not among {}", shapes.begin()->first, kParametersKey);
  return parameters;
}

bool IsCutOfExperts(const json& cut) {
  return cut.is_array() && cut.size() == 4 && cut[0].is_number_unsigned() && cut[0] <= UINT8_MAX &&
         cut[1].is_number_unsigned() && cut[1] <= INT8_MAX && cut[2].is_number_unsigned() &&
         cut[3].is_number_unsigned();
}

bool IsRow(const json& row) {
  if (!row.is_array() || row.size() < 6 || row.size() > 7) return false;
  return row[0].is_string() && row[1].is_number_integer() && row[1] >= -1 && row[1] <= INT8_MAX &&
         row[2].is_number_unsigned() && row[3].is_number_unsigned() && row[4].is_number_integer() &&
         row[5].is_boolean() &&
         (row.size() == 6 || (row[6].is_array() && std::ranges::all_of(row[6], IsCutOfExperts)));
}

// Requires IsRow().
ParameterSpec SpecOf(const json& row, const Dims& shape) {
  ParameterSpec spec{
      .name = row[0], .shape = shape, .layer = row[4], .tied_to_last = row[5], .of_experts = row.size() == 7};
  if (row[1] != -1) spec.cuts = {{Axis::kTp, row[1].get<int8_t>(), row[2], row[3]}};
  if (!spec.of_experts) return spec;
  for (const json& cut : row[6])
    spec.cuts.push_back({cut[0].get<Axis>(), cut[1].get<int8_t>(), cut[2], cut[3]});
  return spec;
}

}  // namespace

std::string EncodeParameters(const std::vector<ParameterSpec>& parameters) {
  json rows = json::array();
  for (const ParameterSpec& spec : parameters) {
    const Cut one = spec.of_experts ? Cut{.dim = -1} : TpCut(spec);
    json row = {spec.name, one.dim, one.unit, one.pad, spec.layer, spec.tied_to_last};
    if (spec.of_experts) {
      row.push_back(json::array());
      for (const Cut& cut : spec.cuts) row[6].push_back({cut.axis, cut.dim, cut.unit, cut.pad});
    }
    rows.push_back(std::move(row));
  }
  return rows.dump();
}

Result<std::vector<ParameterSpec>> DecodeParameters(const std::string& text,
                                                    const std::map<std::string, Dims, std::less<>>& shapes) {
  CAIRN_ASSIGN_OR_RETURN(const json rows, ParseStrictJson(text));
  std::set<std::string> seen;
  std::vector<ParameterSpec> parameters;
  if (!rows.is_array()) return Corrupt("{} is not a list", kParametersKey);
  for (const json& row : rows) {
    if (!IsRow(row)) return Corrupt("{} has the row {}", kParametersKey, row.dump());
    const auto found = shapes.find(row[0].get_ref<const std::string&>());
    if (found == shapes.end() || !seen.insert(found->first).second)
      return NotFound("tensor {} is missing", row[0].dump());
    ParameterSpec spec = SpecOf(row, found->second);
    if (!HasValidCuts(spec))
      return Corrupt("{} has the row {}, but the tensor has shape {}", kParametersKey, row.dump(),
                     ToString(spec.shape));
    parameters.push_back(std::move(spec));
  }
  return parameters;
}

Result<ForeignModel> SafetensorsRelease(const Model& model, Dtype,
                                        const std::vector<ParameterSpec>& parameters) {
  ForeignModel canonical = CanonicalModel(parameters);
  canonical.metadata[kParametersKey] = EncodeParameters(parameters);
  canonical.metadata[kModelKey] = json(model).dump();
  return canonical;
}

bool IsSafetensors(FileSystem& fs, const std::string& path) {
  const Result<FileInfo> info = fs.Stat(path);
  if (!info.ok()) return false;
  if (!info->is_directory()) return path.ends_with(".safetensors");
  return HasAny(fs, path, kSafetensors) || fs.Stat(JoinPath(path, kAdapterFile)).ok();
}

Result<std::unique_ptr<ForeignSource>> OpenSafetensors(FileSystem& fs, const std::string& path,
                                                       ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(WeightFiles files, ReadSafetensorsFiles(fs, path));
  CAIRN_RETURN_IF_ERROR(CheckNoSlice(files, options));
  const auto& metadata = files.metadata;
  if (!metadata.contains(kModelKey) || !metadata.contains(kParametersKey))
    return OpenUnderOwnNames(fs, std::move(files), {}, options);
  CAIRN_ASSIGN_OR_RETURN(const json model, ParseStrictJson(metadata.at(kModelKey)));
  if (!model.is_object()) return Corrupt("{}: {} is not an object", path, kModelKey);
  for (const StoredArray& tensor : files.tensors)
    if (!tensor.unknown_type.empty())
      return NotSupported("{}: tensor {} is {}", path, tensor.name, tensor.unknown_type);
  const Result<std::vector<ParameterSpec>> parameters = SpecsOf(metadata.at(kParametersKey), files.tensors);
  if (!parameters.ok()) return parameters.status().WithContext(path);
  std::unordered_map<std::string_view, const StoredArray*> arrays;
  for (const StoredArray& tensor : files.tensors) arrays.emplace(tensor.name, &tensor);
  StoredBuilder builder;
  builder.catalog.files = std::move(files.names);
  builder.account = std::move(files.account);
  for (const ParameterSpec& spec : *parameters) {
    const StoredArray& array = *arrays.at(spec.name);
    CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, builder.Tensor(spec, Role::kWeight, array.dtype));
    builder.AddPart(tensor, Box::Whole(spec.shape), array);
  }
  Manifest manifest{.model = model};
  const std::string about = RunTextOf(manifest.model);
  return builder.Open(fs, files.directory, std::move(manifest), Replicas::kStrict, about);
}

}  // namespace cairn
