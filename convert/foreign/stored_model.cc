// config.json chooses the family's table; expanded, the table has every stored tensor with its shape and the
// boxes of parameters in it. The tensors of the files are matched by name, with or without the base prefix.
// A tensor without a place must be a buffer, be allowed, or be the copy of tied embeddings, which is then
// compared byte by byte. A place without a tensor is an error. A model of a family without a table, or with
// another head, keeps its names.

#include "convert/foreign/stored_model.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ckpt/base/digest.h"
#include "ckpt/base/glob.h"
#include "ckpt/base/short_list.h"
#include "convert/families/hugging_face_config.h"
#include "convert/foreign/config_model.h"
#include "convert/foreign/replicas.h"
#include "convert/foreign/stored_builder.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {
namespace {

using nlohmann::json;

class Mapper {
 public:
  Mapper(const Architecture& architecture, const ExpandedModel& expanded,
         const std::vector<std::string>& allow)
      : architecture_(architecture),
        expanded_(expanded),
        allow_(allow),
        places_(architecture, expanded),
        found_(expanded.tensors.size()) {
    for (uint32_t i = 0; i < expanded.parameters.size(); ++i) {
      parameter_of_.emplace(expanded.parameters[i].name, i);
      mapped_.catalog.tensors.push_back({expanded.parameters[i], Role::kWeight, Dtype::kF32});
    }
  }

  Status Add(const StoredArray& tensor) {
    const auto place = places_.Find(tensor.name);
    if (place) return Take(tensor, *place);
    if (places_.IsBuffer(tensor.name))
      mapped_.left.emplace_back(Fate::kBuffer, tensor);
    else if (FitsAnyGlob(tensor.name, allow_))
      mapped_.left.emplace_back(Fate::kAllowed, tensor);
    else if (places_.IsHead(tensor.name))
      mapped_.left.emplace_back(Fate::kReplica, tensor);
    else
      unknown_.push_back(tensor.name);
    return OkStatus();
  }

  Result<MappedModel> Finish() {
    if (!unknown_.empty())
      return InvalidArgument(
          "{} tensors have no place in a {} model of this config.json: {}; --allow GLOB leaves "
          "them out",
          unknown_.size(), architecture_.name, ShortList(unknown_));
    std::vector<std::string> missing;
    for (uint32_t i = 0; i < found_.size(); ++i)
      if (!found_[i]) missing.push_back(expanded_.tensors[i].name);
    if (!missing.empty())
      return NotFound("{} tensors that config.json asks for are missing: {}", missing.size(),
                      ShortList(missing));
    return std::move(mapped_);
  }

 private:
  Status Take(const StoredArray& tensor, uint32_t place) {
    const ForeignTensor& wanted = expanded_.tensors[place];
    if (found_[place])
      return Corrupt("tensor {} is there twice, with and without {}", wanted.name, architecture_.base_prefix);
    found_[place] = true;
    if (!(tensor.tensor_shape() == wanted.shape))
      return Corrupt("tensor {} has shape {}, config.json makes it {}", tensor.name,
                     ToString(tensor.tensor_shape()), ToString(wanted.shape));
    if (!tensor.unknown_type.empty())
      return NotSupported("tensor {} is {}, which no weight here can be", tensor.name, tensor.unknown_type);
    StoredCatalog& catalog = mapped_.catalog;
    const auto array = static_cast<uint32_t>(catalog.arrays.size());
    catalog.arrays.push_back(tensor);
    for (const ForeignPart& part : wanted.parts) {
      const uint32_t parameter = parameter_of_.at(part.parameter);
      catalog.tensors[parameter].dtype = tensor.dtype;
      const Box in_array = tensor.transposed ? Transposed(part.in_array) : part.in_array;
      catalog.parts.push_back({{part.box, in_array, part.transpose != tensor.transposed}, parameter, array});
    }
    return OkStatus();
  }

  const Architecture& architecture_;
  const ExpandedModel& expanded_;
  const std::vector<std::string>& allow_;
  const ModelPlaces places_;
  std::unordered_map<std::string, uint32_t> parameter_of_;
  std::vector<bool> found_;
  std::vector<std::string> unknown_;
  MappedModel mapped_;
};

// Compares a copy of tied embeddings with them.
Status CompareTwin(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                   const StoredArray& copy) {
  const auto part = std::ranges::find_if(catalog.parts, [&](const ArrayPart& candidate) {
    return catalog.tensors[candidate.tensor].spec.name == "embedding.word.weight";
  });
  const StoredArray& original = catalog.arrays[part->array];
  if (!copy.unknown_type.empty() || copy.dtype != original.dtype || copy.transposed || original.transposed ||
      !(copy.shape == original.shape) || copy.extents.size() != 1 || original.extents.size() != 1)
    return Corrupt(
        "{}: {} is {} of shape {}, {} which it is tied to is {} of shape {}; --allow '{}' leaves it out",
        directory, copy.name, copy.type_name(), ToString(copy.tensor_shape()), original.name,
        Name(original.dtype), ToString(original.shape), copy.name);
  const StoredExtent &extent = original.extents[0], &other_extent = copy.extents[0];
  if (extent.file == other_extent.file && extent.file_offset == other_extent.file_offset) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const auto both, OpenArrays(fs, directory, catalog.files, {original, copy}));
  CAIRN_ASSIGN_OR_RETURN(const auto distance, Distance(*both, 0, 1));
  if (!distance) return OkStatus();
  return TiedButDifferent(copy.name, original.name, "config.json").WithContext(directory);
}

// A class of the family without its output matrix, or with another head (LlamaModel,
// LlamaForSequenceClassification): all other tensors are there.
bool IsOfAnotherHead(const Architecture& architecture, const json& model,
                     const std::vector<StoredArray>& tensors) {
  const json classes = KeptOfHuggingFace(model, "config").value("architectures", json());
  if (!classes.is_array() || classes.empty() || classes[0] == architecture.class_name) return false;
  const Result<ExpandedModel> expanded = Expand(architecture, model);
  if (!expanded.ok()) return false;
  const ModelPlaces places(architecture, *expanded);
  std::set<uint32_t> found;
  for (const StoredArray& tensor : tensors)
    if (const auto place = places.Find(tensor.name);
        place && tensor.tensor_shape() == expanded->tensors[*place].shape)
      found.insert(*place);
  for (uint32_t i = 0; i < expanded->tensors.size(); ++i)
    if (!found.contains(i) && !places.IsHead(expanded->tensors[i].name)) return false;
  return true;
}

// The one type of all weights: config.json may state another, in which transformers computes.
void NoteDtype(const StoredCatalog& catalog, json& model) {
  if (catalog.tensors.empty()) return;
  const Dtype dtype = catalog.tensors[0].dtype;
  if (std::ranges::all_of(catalog.tensors, [&](const TensorEntry& tensor) { return tensor.dtype == dtype; }))
    model["hugging_face"]["stored_dtype"] = TorchName(dtype);
}

}  // namespace

Result<MappedModel> MapToParameters(const Architecture& architecture, const json& model,
                                    const std::vector<StoredArray>& tensors, std::vector<std::string> files,
                                    const std::vector<std::string>& allow) {
  CAIRN_ASSIGN_OR_RETURN(const ModelShape shape, ReadShape(model));
  if (std::cmp_greater(shape.layers, tensors.size()))
    return NotFound("config.json asks for {} layers, the files have {} tensors", shape.layers,
                    tensors.size());
  CAIRN_ASSIGN_OR_RETURN(const ExpandedModel expanded, Expand(architecture, model));
  Mapper mapper(architecture, expanded, allow);
  for (const StoredArray& tensor : tensors) CAIRN_RETURN_IF_ERROR(mapper.Add(tensor));
  CAIRN_ASSIGN_OR_RETURN(MappedModel mapped, mapper.Finish());
  mapped.catalog.files = std::move(files);
  return mapped;
}

std::string RunTextOf(const json& model) {
  json fields = model;
  fields.erase("hugging_face");
  return fields.dump();
}

Result<std::unique_ptr<ForeignSource>> OpenStoredModel(FileSystem& fs, WeightFiles files,
                                                       const OpenOptions& options) {
  const std::string& directory = files.directory;
  CAIRN_ASSIGN_OR_RETURN(ConfigModel config, ReadConfigModel(fs, JoinPath(directory, "config.json")));
  json& model = config.model;
  if (config.architecture == nullptr)
    return OpenUnderOwnNames(fs, std::move(files), std::move(model), options);
  Result<MappedModel> mapped =
      MapToParameters(*config.architecture, model, files.tensors, files.names, options.allow);
  if (!mapped.ok() && IsOfAnotherHead(*config.architecture, model, files.tensors)) {
    json own = {{"config", std::move(model["hugging_face"]["config"])}};
    model["hugging_face"].erase("config");
    own["hugging_face"] = std::move(model["hugging_face"]);
    return OpenUnderOwnNames(fs, std::move(files), std::move(own), options);
  }
  if (!mapped.ok()) return mapped.status().WithContext(directory);
  for (const auto& [fate, tensor] : mapped->left)
    if (fate == Fate::kReplica) CAIRN_RETURN_IF_ERROR(CompareTwin(fs, directory, mapped->catalog, tensor));
  const std::string about = RunTextOf(model);
  NoteDtype(mapped->catalog, model);
  Manifest manifest;
  manifest.history = LeaveOutFields(options.allow, model);
  manifest.model = std::move(model);
  StoredBuilder builder;
  builder.catalog = std::move(mapped->catalog);
  builder.account = std::move(files.account);
  for (const auto& [fate, tensor] : mapped->left) {
    builder.account.Leave(fate, builder.catalog, tensor);
    if (fate == Fate::kAllowed)
      manifest.history.push_back(fmt::format("import: {} was left out (--allow)", tensor.name));
  }
  return builder.Open(fs, directory, std::move(manifest), Replicas::kStrict, about);
}

Result<std::unique_ptr<ForeignSource>> OpenUnderOwnNames(FileSystem& fs, WeightFiles files, json model,
                                                         const OpenOptions& options) {
  StoredBuilder builder;
  Manifest manifest;
  builder.catalog.files = std::move(files.names);
  builder.account = std::move(files.account);
  for (const StoredArray& tensor : files.tensors) {
    const bool allowed = FitsAnyGlob(tensor.name, options.allow), known = tensor.unknown_type.empty();
    if (!allowed && !known && !options.skip_types)
      return NotSupported("{}: tensor {} is {}, which is not held here; --allow '{}' leaves it out",
                          files.directory, tensor.name, tensor.unknown_type, tensor.name);
    if (allowed || !known) {
      builder.account.Leave(Fate::kAllowed, builder.catalog, tensor);
      if (allowed)
        manifest.history.push_back(fmt::format("import: {} was left out (--allow)", tensor.name));
      else
        manifest.state[kTypesNotHeld][tensor.name] = tensor.unknown_type;
      continue;
    }
    const Dims shape = tensor.tensor_shape();
    CAIRN_ASSIGN_OR_RETURN(const uint32_t entry, builder.Tensor({.name = tensor.name, .shape = shape},
                                                                Role::kWeight, tensor.dtype));
    builder.AddPart(entry, Box::Whole(shape), tensor);
  }
  if (builder.catalog.tensors.empty()) return NotFound("{}: it does not contain tensors", files.directory);
  const std::string about = RunTextOf(model);
  if (model.contains("config")) NoteDtype(builder.catalog, model);
  manifest.model = std::move(model);
  return builder.Open(fs, files.directory, std::move(manifest), Replicas::kStrict, about);
}

}  // namespace cairn
