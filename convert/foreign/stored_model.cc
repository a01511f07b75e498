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
#include "convert/foreign/foreign_identity.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kCompareBytes = 4 << 20;

// Requires a dtype.
StoredArray ArrayOf(const ListedTensor& tensor) {
  StoredArray array{tensor.name, *tensor.dtype, tensor.shape, tensor.extents};
  if (tensor.transposed) array.shape = {tensor.shape[1], tensor.shape[0]};
  return array;
}

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

  Status Add(const ListedTensor& tensor) {
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
          unknown_.size(), architecture_.name, SomeOf(unknown_));
    std::vector<std::string> missing;
    for (uint32_t i = 0; i < found_.size(); ++i)
      if (!found_[i]) missing.push_back(expanded_.tensors[i].name);
    if (!missing.empty())
      return NotFound("{} tensors that config.json asks for are missing: {}", missing.size(),
                      SomeOf(missing));
    for (StoredTwin& twin : mapped_.twins) CAIRN_RETURN_IF_ERROR(FindOriginal(twin));
    return std::move(mapped_);
  }

 private:
  Status Take(const ListedTensor& tensor, uint32_t place) {
    const ForeignTensor& wanted = expanded_.tensors[place];
    if (found_[place])
      return Corrupt("tensor {} is there twice, with and without {}", wanted.name, architecture_.base_prefix);
    found_[place] = true;
    if (!(tensor.shape == wanted.shape))
      return Corrupt("tensor {} has shape {}, config.json makes it {}", tensor.name, ToString(tensor.shape),
                     ToString(wanted.shape));
    if (!tensor.dtype)
      return NotSupported("tensor {} is {}, which no weight here can be", tensor.name, tensor.dtype_name);
    StoredCatalog& catalog = mapped_.catalog;
    const auto array = static_cast<uint32_t>(catalog.arrays.size());
    catalog.arrays.push_back(ArrayOf(tensor));
    for (const ForeignPart& part : wanted.parts) {
      const uint32_t parameter = parameter_of_.at(part.parameter);
      catalog.tensors[parameter].dtype = *tensor.dtype;
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
    const bool alike = twin.copy.dtype == original.dtype && !twin.copy.transposed &&
                       twin.copy.shape == original.shape && twin.copy.extents.size() == 1 &&
                       original.extents.size() == 1;
    if (alike) return OkStatus();
    return Corrupt(
        "{} is {} of shape {}, {} which it is tied to is {} of shape {}; --allow '{}' leaves it out",
        twin.copy.name, twin.copy.dtype_name, ToString(twin.copy.shape), original.name, Name(original.dtype),
        ToString(original.shape), twin.copy.name);
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
                     const std::vector<ListedTensor>& tensors) {
  const json classes = KeptOfHuggingFace(model, "config").value("architectures", json());
  if (!classes.is_array() || classes.empty() || classes[0] == architecture.class_name) return false;
  const Result<ExpandedModel> expanded = Expand(architecture, model);
  if (!expanded.ok()) return false;
  const ModelPlaces places(architecture, *expanded);
  std::set<uint32_t> found;
  for (const ListedTensor& tensor : tensors)
    if (const auto place = places.Find(tensor.name); place && tensor.shape == expanded->tensors[*place].shape)
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

void Leave(Account& account, Fate fate, const ListedTensor& tensor, const std::vector<std::string>& files) {
  if (!tensor.dtype) return account.LeaveStorage(fate, tensor.name);
  for (const StoredExtent& extent : tensor.extents)
    account.Leave(fate, files[extent.file], extent.file_offset, extent.range.size() * SizeOf(*tensor.dtype),
                  tensor.name);
}

Status Settle(const MappedModel& mapped, Account& account, Manifest& manifest) {
  const auto& files = mapped.catalog.files;
  for (const ListedTensor& tensor : mapped.buffers) Leave(account, Fate::kBuffer, tensor, files);
  for (const ListedTensor& tensor : mapped.allowed) Leave(account, Fate::kAllowed, tensor, files);
  for (const StoredTwin& twin : mapped.twins) Leave(account, Fate::kReplica, twin.copy, files);
  CAIRN_ASSIGN_OR_RETURN(manifest.state[kAccountKey], account.Close(mapped.catalog));
  return OkStatus();
}

}  // namespace

Result<MappedModel> MapToParameters(const Architecture& architecture, const json& model,
                                    const std::vector<ListedTensor>& tensors, std::vector<std::string> files,
                                    const std::vector<std::string>& allow) {
  CAIRN_ASSIGN_OR_RETURN(const ModelShape shape, ReadShape(model));
  if (std::cmp_greater(shape.layers, tensors.size()))
    return NotFound("config.json asks for {} layers, the files have {} tensors", shape.layers,
                    tensors.size());
  CAIRN_ASSIGN_OR_RETURN(const ExpandedModel expanded, Expand(architecture, model));
  Mapper mapper(architecture, expanded, allow);
  for (const ListedTensor& tensor : tensors) CAIRN_RETURN_IF_ERROR(mapper.Add(tensor));
  CAIRN_ASSIGN_OR_RETURN(MappedModel mapped, mapper.Finish());
  mapped.catalog.files = std::move(files);
  return mapped;
}

Result<std::string> RunOf(FileSystem& fs, const std::string& directory, const json& model,
                          const StoredCatalog& catalog) {
  json fields = model;
  fields.erase("hugging_face");
  return RunIdentity(fs, directory, catalog, fields.dump());
}

Result<std::unique_ptr<ForeignSource>> OpenStoredModel(FileSystem& fs, const std::string& directory,
                                                       std::vector<std::string> files,
                                                       const std::vector<ListedTensor>& tensors,
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
  Manifest manifest;
  CAIRN_RETURN_IF_ERROR(Settle(*mapped, account, manifest).WithContext(directory));
  CAIRN_ASSIGN_OR_RETURN(manifest.run, RunOf(fs, directory, model, mapped->catalog));
  NoteDtype(mapped->catalog, model);
  manifest.history = LeaveOutFields(options.allow, model);
  manifest.model = std::move(model);
  for (const std::string& name : mapped->left_out)
    manifest.history.push_back(fmt::format("import: {} was left out (--allow)", name));
  CAIRN_ASSIGN_OR_RETURN(auto source,
                         StoredSource::Make(fs, directory, std::move(manifest), std::move(mapped->catalog)));
  return std::unique_ptr<ForeignSource>(std::move(source));
}

Result<std::unique_ptr<ForeignSource>> OpenUnderOwnNames(FileSystem& fs, const std::string& directory,
                                                         std::vector<std::string> files,
                                                         const std::vector<ListedTensor>& tensors,
                                                         Account account, json model,
                                                         const OpenOptions& options) {
  MappedModel mapped;
  Manifest manifest;
  mapped.catalog.files = std::move(files);
  StoredCatalog& catalog = mapped.catalog;
  for (const ListedTensor& tensor : tensors) {
    if (FitsAnyGlob(tensor.name, options.allow)) {
      mapped.left_out.push_back(tensor.name);
      mapped.allowed.push_back(tensor);
      continue;
    }
    if (!tensor.dtype && options.skip_types) {
      manifest.state[kTypesNotHeld][tensor.name] = tensor.dtype_name;
      mapped.allowed.push_back(tensor);
      continue;
    }
    if (!tensor.dtype)
      return NotSupported("{}: tensor {} is {}, which is not held here; --allow '{}' leaves it out",
                          directory, tensor.name, tensor.dtype_name, tensor.name);
    const auto index = static_cast<uint32_t>(catalog.tensors.size());
    catalog.tensors.push_back({{.name = tensor.name, .shape = tensor.shape}, Role::kWeight, *tensor.dtype});
    catalog.arrays.push_back(ArrayOf(tensor));
    const Box in_array = Box::Whole(catalog.arrays.back().shape);
    catalog.parts.push_back({{Box::Whole(tensor.shape), in_array, tensor.transposed}, index, index});
  }
  if (catalog.tensors.empty()) return NotFound("{}: there are no tensors in it", directory);
  CAIRN_RETURN_IF_ERROR(Settle(mapped, account, manifest).WithContext(directory));
  CAIRN_ASSIGN_OR_RETURN(manifest.run, RunOf(fs, directory, model, catalog));
  if (model.contains("config")) NoteDtype(catalog, model);
  manifest.model = std::move(model);
  for (const std::string& name : mapped.left_out)
    manifest.history.push_back(fmt::format("import: {} was left out (--allow)", name));
  CAIRN_ASSIGN_OR_RETURN(auto source,
                         StoredSource::Make(fs, directory, std::move(manifest), std::move(catalog)));
  return std::unique_ptr<ForeignSource>(std::move(source));
}

}  // namespace cairn
