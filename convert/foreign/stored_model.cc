// config.json chooses the family's table; expanded, the table has every stored tensor with its shape and the
// boxes of parameters in it. The tensors of the files are matched by name, with or without the base prefix.
// A tensor without a place must be a buffer, be allowed, or be the copy of tied embeddings, which is then
// compared byte by byte. A place without a tensor is an error. A model of a family without a table, or with
// another head, keeps its names.

#include "convert/foreign/stored_model.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "ckpt/base/digest.h"
#include "ckpt/base/glob.h"
#include "convert/families/hugging_face_config.h"
#include "convert/foreign/config_model.h"
#include "convert/foreign/stored_builder.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kCompareBytes = 4 << 20;

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
    if (places_.IsBuffer(tensor.name)) {
      mapped_.buffers.push_back(tensor);
      return OkStatus();
    }
    if (FitsAnyGlob(tensor.name, allow_)) {
      mapped_.left_out.push_back(tensor.name);
      mapped_.allowed.push_back(tensor);
    } else if (places_.IsHead(tensor.name)) {
      mapped_.twins.push_back({0, tensor});
    } else {
      unknown_.push_back(tensor.name);
    }
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
    for (StoredTwin& twin : mapped_.twins) CAIRN_RETURN_IF_ERROR(FindOriginal(twin));
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

  Status FindOriginal(StoredTwin& twin) const {
    const uint32_t embedding = parameter_of_.at("embedding.word.weight");
    const auto part = std::ranges::find(mapped_.catalog.parts, embedding, &ArrayPart::tensor);
    twin.array = part->array;
    const StoredArray& original = mapped_.catalog.arrays[twin.array];
    const bool alike = twin.copy.unknown_type.empty() && twin.copy.dtype == original.dtype &&
                       !twin.copy.transposed && !original.transposed && twin.copy.shape == original.shape &&
                       twin.copy.extents.size() == 1 && original.extents.size() == 1;
    if (alike) return OkStatus();
    return Corrupt(
        "{} is {} of shape {}, {} which it is tied to is {} of shape {}; --allow '{}' leaves it out",
        twin.copy.name, twin.copy.type_name(), ToString(twin.copy.tensor_shape()), original.name,
        Name(original.dtype), ToString(original.shape), twin.copy.name);
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

// Byte by byte, in a window.
Status CompareTwin(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                   const StoredTwin& twin) {
  const StoredArray& original = catalog.arrays[twin.array];
  const StoredExtent &extent = original.extents[0], &other_extent = twin.copy.extents[0];
  if (extent.file == other_extent.file && extent.file_offset == other_extent.file_offset) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const auto a, fs.OpenForRead(JoinPath(directory, catalog.files[extent.file])));
  CAIRN_ASSIGN_OR_RETURN(const auto b, fs.OpenForRead(JoinPath(directory, catalog.files[other_extent.file])));
  const uint64_t bytes = extent.range.size() * SizeOf(original.dtype);
  std::vector<std::byte> one(std::min(bytes, kCompareBytes)), other(one.size());
  for (uint64_t at = 0; at < bytes; at += one.size()) {
    const uint64_t size = std::min<uint64_t>(one.size(), bytes - at);
    CAIRN_RETURN_IF_ERROR(a->ReadAt(extent.file_offset + at, std::span(one).first(size)));
    CAIRN_RETURN_IF_ERROR(b->ReadAt(other_extent.file_offset + at, std::span(other).first(size)));
    if (std::memcmp(one.data(), other.data(), size) != 0)
      return Corrupt(
          "{}: {} differs from {}, though config.json ties them; set tie_word_embeddings to false there, "
          "or leave it out with --allow '{}'",
          directory, twin.copy.name, original.name, twin.copy.name);
  }
  return OkStatus();
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

// Declares the tensors without a place in the catalog, and opens the rest.
Result<std::unique_ptr<ForeignSource>> OpenMapped(FileSystem& fs, const std::string& directory,
                                                  MappedModel mapped, Account account, Manifest manifest,
                                                  const std::string& about) {
  for (const StoredArray& tensor : mapped.buffers) account.Leave(Fate::kBuffer, mapped.catalog, tensor);
  for (const StoredArray& tensor : mapped.allowed) account.Leave(Fate::kAllowed, mapped.catalog, tensor);
  for (const StoredTwin& twin : mapped.twins) account.Leave(Fate::kReplica, mapped.catalog, twin.copy);
  for (const std::string& name : mapped.left_out)
    manifest.history.push_back(fmt::format("import: {} was left out (--allow)", name));
  StoredBuilder builder;
  builder.catalog = std::move(mapped.catalog);
  builder.account = std::move(account);
  return builder.Open(fs, directory, std::move(manifest), Replicas::kStrict, about);
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

Result<std::unique_ptr<ForeignSource>> OpenStoredModel(FileSystem& fs, const std::string& directory,
                                                       std::vector<std::string> files,
                                                       const std::vector<StoredArray>& tensors,
                                                       Account account, const OpenOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(ConfigModel config, ReadConfigModel(fs, JoinPath(directory, "config.json")));
  json& model = config.model;
  if (config.architecture == nullptr)
    return OpenUnderOwnNames(fs, directory, std::move(files), tensors, std::move(account), std::move(model),
                             options);
  Result<MappedModel> mapped = MapToParameters(*config.architecture, model, tensors, files, options.allow);
  if (!mapped.ok() && IsOfAnotherHead(*config.architecture, model, tensors)) {
    json own = {{"config", std::move(model["hugging_face"]["config"])}};
    model["hugging_face"].erase("config");
    own["hugging_face"] = std::move(model["hugging_face"]);
    return OpenUnderOwnNames(fs, directory, std::move(files), tensors, std::move(account), std::move(own),
                             options);
  }
  if (!mapped.ok()) return mapped.status().WithContext(directory);
  for (const StoredTwin& twin : mapped->twins)
    CAIRN_RETURN_IF_ERROR(CompareTwin(fs, directory, mapped->catalog, twin));
  const std::string about = RunTextOf(model);
  NoteDtype(mapped->catalog, model);
  Manifest manifest;
  manifest.history = LeaveOutFields(options.allow, model);
  manifest.model = std::move(model);
  return OpenMapped(fs, directory, *std::move(mapped), std::move(account), std::move(manifest), about);
}

Result<std::unique_ptr<ForeignSource>> OpenUnderOwnNames(FileSystem& fs, const std::string& directory,
                                                         std::vector<std::string> files,
                                                         const std::vector<StoredArray>& tensors,
                                                         Account account, json model,
                                                         const OpenOptions& options) {
  MappedModel mapped;
  Manifest manifest;
  mapped.catalog.files = std::move(files);
  StoredCatalog& catalog = mapped.catalog;
  for (const StoredArray& tensor : tensors) {
    if (FitsAnyGlob(tensor.name, options.allow)) {
      mapped.left_out.push_back(tensor.name);
      mapped.allowed.push_back(tensor);
      continue;
    }
    if (!tensor.unknown_type.empty() && options.skip_types) {
      manifest.state[kTypesNotHeld][tensor.name] = tensor.unknown_type;
      mapped.allowed.push_back(tensor);
      continue;
    }
    if (!tensor.unknown_type.empty())
      return NotSupported("{}: tensor {} is {}, which is not held here; --allow '{}' leaves it out",
                          directory, tensor.name, tensor.unknown_type, tensor.name);
    const auto index = static_cast<uint32_t>(catalog.tensors.size());
    catalog.tensors.push_back(
        {{.name = tensor.name, .shape = tensor.tensor_shape()}, Role::kWeight, tensor.dtype});
    catalog.arrays.push_back(tensor);
    const Box box = Box::Whole(tensor.tensor_shape());
    catalog.parts.push_back({{box, Box::Whole(tensor.shape), tensor.transposed}, index, index});
  }
  if (catalog.tensors.empty()) return NotFound("{}: it does not contain tensors", directory);
  const std::string about = RunTextOf(model);
  if (model.contains("config")) NoteDtype(catalog, model);
  manifest.model = std::move(model);
  return OpenMapped(fs, directory, std::move(mapped), std::move(account), std::move(manifest), about);
}

}  // namespace cairn
