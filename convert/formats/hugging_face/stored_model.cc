// The files' tensors become parameters by a ConfigMapping: that of config.json, or one that keeps every name.
// Each part of it, composed with the tensor's place in its file, is a part of the StoredCatalog, so a model
// is read as fast as plain arrays are.

#include "convert/formats/hugging_face/stored_model.h"

#include <algorithm>

#include "ckpt/base/glob.h"
#include "ckpt/model/canonical_modules.h"
#include "convert/foreign/replicas.h"
#include "convert/foreign/stored_builder.h"
#include "convert/formats/hugging_face/block_scaled.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/hugging_face/dequantized_source.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {
namespace {

using nlohmann::json;

// The one type of all weights: config.json may state another, in which transformers computes.
void NoteDtype(const StoredCatalog& catalog, Model& model) {
  if (catalog.tensors.empty()) return;
  const Dtype dtype = catalog.tensors[0].dtype;
  const auto has_it = [&](const TensorEntry& tensor) {
    const CanonicalModule* module = ModuleOfParameter(tensor.spec.name);
    return tensor.dtype == dtype || (module && module->keeps_type);
  };
  if (std::ranges::all_of(catalog.tensors, has_it))
    model.rest["hugging_face"]["stored_dtype"] = TorchName(dtype);
}

TensorTable TableOf(const std::vector<StoredArray>& tensors) {
  TensorTable table;
  for (const StoredArray& tensor : tensors) table.tensors.push_back(WholeTensor(tensor));
  return table;
}

bool IsSamePlace(const StoredArray& a, const StoredArray& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.transposed == b.transposed && a.extents == b.extents;
}

Status CheckTwins(FileSystem& fs, const WeightFiles& files, const ConfigMapping& mapping,
                  const std::string& config) {
  for (const auto& [original, copy] : mapping.twins) {
    const StoredArray &one = files.tensors[original], &other = files.tensors[copy];
    if (IsSamePlace(one, other)) continue;
    CAIRN_ASSIGN_OR_RETURN(const auto both, OpenArrays(fs, files.directory, files.names, {one, other}));
    CAIRN_RETURN_IF_ERROR(CheckTied(*both, 0, 1, config).WithContext(files.directory));
  }
  return OkStatus();
}

// `manifest` has the model and the state.
Result<std::unique_ptr<ForeignSource>> OpenMapped(FileSystem& fs, WeightFiles files,
                                                  const ConfigMapping& mapping, Manifest manifest,
                                                  const std::vector<std::string>& allow) {
  StoredBuilder builder;
  builder.catalog.files = std::move(files.names);
  builder.account = std::move(files.account);
  std::vector<uint32_t> numbers;
  for (const auto& [spec, role, dtype] : mapping.catalog.tensors) {
    CAIRN_ASSIGN_OR_RETURN(numbers.emplace_back(), builder.Tensor(spec, role, dtype));
  }
  uint32_t stored = UINT32_MAX, array = 0;
  for (const ArrayPart& part : mapping.parts) {
    const StoredArray& tensor = files.tensors[part.array];
    if (!tensor.unknown_type.empty())
      return NotSupported("{}: tensor {} has type {}, which weights cannot have", files.Place(), tensor.name,
                          tensor.unknown_type);
    if (std::exchange(stored, part.array) != part.array) {
      array = builder.AddArray(tensor);
      if (const auto seen = mapping.seen.find(stored); seen != mapping.seen.end())
        builder.catalog.arrays[array].shape = seen->second;
    }
    builder.catalog.parts.push_back({tensor.Stored(part), numbers[part.tensor], array});
  }
  for (const auto& [fate, tensors] : mapping.left)
    for (const uint32_t tensor : tensors) builder.account.Omit(fate, builder.catalog, files.tensors[tensor]);
  const std::string about = RunTextOf(manifest.model);
  if (!manifest.model.empty()) NoteDtype(builder.catalog, manifest.model);
  manifest.history = LeaveOutFields(allow, manifest.model);
  std::ranges::copy(mapping.history, std::back_inserter(manifest.history));
  return builder.Open(fs, files.directory, std::move(manifest), Replicas::kStrict, about);
}

Result<std::unique_ptr<ForeignSource>> OpenAsStored(FileSystem& fs, WeightFiles files, Model model,
                                                    const OpenOptions& options) {
  ConfigMapping mapping;
  Manifest manifest;
  for (uint32_t i = 0; i < files.tensors.size(); ++i) {
    const StoredArray& tensor = files.tensors[i];
    const bool allowed = FitsAnyGlob(tensor.name, options.allow), known = tensor.unknown_type.empty();
    if (!allowed && !known && !options.skip_types)
      return NotSupported("{}: tensor {} is {}, which is not held here; --allow '{}' leaves it out",
                          files.Place(), tensor.name, tensor.unknown_type, tensor.name);
    if (allowed || !known) {
      mapping.left[Fate::kAllowed].push_back(i);
      if (allowed)
        mapping.history.push_back(fmt::format("import: {} was left out (--allow)", tensor.name));
      else
        manifest.state[kTypesNotHeld][tensor.name] = tensor.unknown_type;
      continue;
    }
    const Box whole = Box::Whole(tensor.tensor_shape());
    mapping.parts.push_back({{whole, whole}, static_cast<uint32_t>(mapping.catalog.tensors.size()), i});
    mapping.catalog.tensors.push_back(WholeTensor(tensor));
  }
  if (mapping.parts.empty()) return NotSupported("{}: it does not contain tensors", files.Place());
  manifest.model = std::move(model);
  return OpenMapped(fs, std::move(files), mapping, std::move(manifest), options.allow);
}

bool HasScales(const std::vector<BlockScaled>& scaled) {
  return std::ranges::any_of(scaled, [](const BlockScaled& one) { return one.scales.has_value(); });
}

// Under own names. Weights with scales are read as `type`, or stay as they are.
Result<std::unique_ptr<ForeignSource>> OpenNames(FileSystem& fs, WeightFiles files, Model model,
                                                 bool has_family, std::optional<Dtype> type,
                                                 const OpenOptions& options) {
  const json& config = model.Get("config");
  const json quantization = config.is_object() ? config.value(kQuantization, json()) : json();
  CAIRN_ASSIGN_OR_RETURN(auto source, OpenAsStored(fs, std::move(files), std::move(model), options));
  const auto scaled = FindBlockScaled(source->catalog(), quantization, has_family);
  if (!scaled.ok()) return scaled.status().WithContext(source->name());
  const std::string counts = CountsOfScaled(*scaled);
  if (const std::string method = UnreadMethod(source->catalog(), quantization); !method.empty())
    source->SetNote(fmt::format(
        "{}: its weights are quantized by {}, which Cairn does not read: they stay as they are stored, under "
        "their own names",
        source->name(), method));
  if (type && !scaled->empty()) source = Dequantized(std::move(source), *scaled, *type);
  if (counts.empty()) return source;
  if (!type) {
    source->SetNote(
        fmt::format("{}: {} weights stay as they are stored, under their own names; --dtype bf16 dequantizes "
                    "them",
                    source->name(), counts));
    return source;
  }
  source->SetNote(
      fmt::format("{}: {} weights are read as {}, with their scales", source->name(), counts, Name(*type)));
  source->AddHistory(fmt::format("import: {} weights were read as {}", counts, Name(*type)));
  return source;
}

// As parameters, through a source of the files' names. The mapping leaves out what is allowed, because it
// knows which names have no place; it sees no tensors of types that are not held.
Result<std::unique_ptr<ForeignSource>> OpenThroughNames(FileSystem& fs, WeightFiles files, ConfigModel config,
                                                        const OpenOptions& options) {
  OpenOptions of_names = options;
  if (std::ranges::all_of(files.tensors, &std::string::empty, &StoredArray::unknown_type))
    of_names.allow.clear();
  CAIRN_ASSIGN_OR_RETURN(
      auto source, OpenNames(fs, std::move(files), config.UnderOwnNames(),
                             /*has_family=*/true, options.dequantized.value_or(Dtype::kBF16), of_names));
  std::vector<std::string> history = ChooseMtpLayers(source->catalog(), options.allow, config);
  auto mapping = MapByConfig(source->catalog(), /*training=*/nullptr, config, options.allow);
  if (!mapping.ok()) return mapping.status().WithContext(source->name());
  if (mapping->own_names) return source;
  const std::string note = source->note();
  CAIRN_ASSIGN_OR_RETURN(source, ReadMapped(std::move(source), *std::move(mapping), std::move(config),
                                            options, std::move(history)));
  source->SetNote(note);
  return source;
}

}  // namespace

std::string RunTextOf(const Model& model) {
  json fields = model;
  fields.erase("hugging_face");
  return fields.dump();
}

Result<std::unique_ptr<ForeignSource>> OpenStoredModel(FileSystem& fs, WeightFiles files,
                                                       const OpenOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(ConfigModel config, ReadConfigModel(fs, JoinPath(files.directory, "config.json")));
  const TensorTable table = TableOf(files.tensors);
  if (config.family == nullptr || !UnreadMethod(table, config.quantization).empty())
    return OpenUnderOwnNames(fs, std::move(files), config.UnderOwnNames(), options);
  const auto scaled = FindBlockScaled(table, config.quantization, /*has_family=*/true);
  if (!scaled.ok()) return scaled.status().WithContext(files.directory);
  if (HasScales(*scaled) && !options.dequantized)
    return OpenNames(fs, std::move(files), config.UnderOwnNames(), /*has_family=*/true, {}, options);
  if (!scaled->empty()) return OpenThroughNames(fs, std::move(files), std::move(config), options);
  ConfigModel chosen = config;
  std::vector<std::string> history = ChooseMtpLayers(table, options.allow, chosen);
  Result<ConfigMapping> mapping = MapByConfig(table, /*training=*/nullptr, chosen, options.allow);
  if (!mapping.ok()) return mapping.status().WithContext(files.directory);
  if (mapping->own_names) return OpenUnderOwnNames(fs, std::move(files), config.UnderOwnNames(), options);
  if (std::ranges::any_of(mapping->seen,
                          [&](const auto& seen) { return files.tensors[seen.first].transposed; }))
    return OpenThroughNames(fs, std::move(files), std::move(config), options);
  CAIRN_RETURN_IF_ERROR(CheckTwins(fs, files, *mapping, config.path));
  std::ranges::move(history, std::back_inserter(mapping->history));
  Manifest manifest;
  KeepCopies(*mapping, chosen.model);
  manifest.model = std::move(chosen.model);
  return OpenMapped(fs, std::move(files), *mapping, std::move(manifest), options.allow);
}

Result<std::unique_ptr<ForeignSource>> OpenUnderOwnNames(FileSystem& fs, WeightFiles files, Model model,
                                                         const OpenOptions& options) {
  return OpenNames(fs, std::move(files), std::move(model), /*has_family=*/false, options.dequantized,
                   options);
}

}  // namespace cairn
