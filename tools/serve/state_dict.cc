#include "tools/serve/state_dict.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ckpt/io/strict_json.h"
#include "ckpt/model/path_check.h"
#include "convert/formats/training/dcp_param_groups.h"

namespace cairn {
namespace {

constexpr int kVersion = 1;

TensorEntry BytesEntry(const std::string& name, Role role, size_t bytes) {
  TensorEntry entry{.role = role, .dtype = Dtype::kU8};
  entry.spec.name = name;
  entry.spec.shape.push_back(bytes);
  return entry;
}

// Adds the path, if there is one.
nlohmann::json WithPath(nlohmann::json row, const nlohmann::json& path) {
  if (!path.is_null()) row["path"] = path;
  return row;
}

// The place of a value's bytes in its group's tail; null for JSON.
nlohmann::json PlaceOf(const nlohmann::json& value) {
  if (value.contains("pickle")) return value["pickle"];
  return value.contains("tensor") ? value["tensor"].value("data", nlohmann::json()) : nlohmann::json();
}

Result<StateValue> ValueOf(const std::string& fqn, const nlohmann::json& value, std::string_view tail) {
  const int kinds = (value.contains("json") ? 1 : 0) + (value.contains("pickle") ? 1 : 0) +
                    (value.contains("tensor") ? 1 : 0);
  const bool is_text = !value.contains("json") || value["json"].is_string();
  if (kinds != 1 || !is_text) return Corrupt("{}: it is not JSON, bytes or a tensor", fqn);
  StateValue read{value, {}};
  const nlohmann::json place = PlaceOf(value);
  if (place.is_null()) return read;
  CAIRN_ASSIGN_OR_RETURN(const std::string_view bytes, TailPart(tail, place));
  read.bytes = bytes;
  if (value.contains("pickle"))
    read.value["pickle"] = nullptr;
  else
    read.value["tensor"]["data"] = nullptr;
  return read;
}

// A Python value (python/cairn/torch/_objects.py) if it is plain; tuples become lists. Otherwise discarded.
nlohmann::json PlainValue(const nlohmann::json& text) {
  const auto read = ParseStrictJson(text.get<std::string>());
  if (!read.ok()) return nlohmann::json::value_t::discarded;
  if (!read->is_object()) return *read;
  const bool tuple = read->value("__cairn__", "") == "tuple" && read->contains("items");
  return tuple ? (*read)["items"] : nlohmann::json(nlohmann::json::value_t::discarded);
}

// Ranks that hold the same tensor must agree on it.
Status CheckAlike(int rank, const StateTensor& tensor, const TensorEntry& other) {
  const TensorEntry& own = tensor.entry;
  if (own == other) return OkStatus();
  if (own.dtype != other.dtype || own.spec.shape != other.spec.shape)
    return InvalidArgument("rank {} holds {} as {} {}, but another rank as {} {}", rank, tensor.fqn,
                           Name(own.dtype), ToString(own.spec.shape), Name(other.dtype),
                           ToString(other.spec.shape));
  return InvalidArgument(
      "by the tensors of rank {}, {} would be {} of the step; by those of another rank, {}: two parts of the "
      "state dict share names of tensors, and some ranks hold only one part; save the two in separate runs, "
      "or under different names",
      rank, tensor.fqn, DisplayName(own), DisplayName(other));
}

// A load holds it in memory, so a larger one could never be read.
Status CheckSize(std::string_view what, uint64_t bytes) {
  if (bytes <= kMaxValueBytes) return OkStatus();
  return InvalidArgument("{}: {} bytes, but a step holds {} outside of tensors; save large arrays as tensors",
                         what, bytes, kMaxValueBytes);
}

}  // namespace

Status StateDict::Add(int rank, const Packet& group) {
  const auto values = group.head.find("values");
  if (values == group.head.end() || !values->is_object()) return Corrupt("a group without values");
  for (const auto& [fqn, value] : values->items()) {
    CAIRN_ASSIGN_OR_RETURN(StateValue read, ValueOf(fqn, value, group.tail));
    const auto [at, added] = values_.try_emplace(fqn, rank, std::move(read));
    if (added || at->second.second == read || !differ_.insert(fqn).second) continue;
    differences_.push_back(
        fmt::format("rank {} had a different {}; rank {}'s was kept", rank, fqn, at->second.first));
  }
  return OkStatus();
}

Status StateDict::Add(int rank, const std::vector<StateTensor>& table) {
  for (const StateTensor& tensor : table) {
    const auto [at, added] = tensors_.try_emplace(tensor.fqn, tensor);
    if (!added) CAIRN_RETURN_IF_ERROR(CheckAlike(rank, tensor, at->second.entry));
  }
  return OkStatus();
}

Status StateDict::AddSmallTensors() {
  std::vector<StateTensor> all;
  for (const auto& [fqn, tensor] : tensors_) all.push_back(tensor);
  std::vector<std::string> others;
  for (const auto& [fqn, value] : values_) {
    if (!value.second.value.contains("tensor")) {
      others.push_back(fqn);
      continue;
    }
    nlohmann::json described = value.second.value["tensor"];
    described["fqn"] = fqn;
    described["path"] = value.second.value.value("path", nlohmann::json());
    CAIRN_ASSIGN_OR_RETURN(StateTensor tensor, DescribedTensor(described));
    if (tensor.entry.bytes() != value.second.bytes.size())
      return Corrupt("{}: {} bytes, its shape has {}", fqn, value.second.bytes.size(), tensor.entry.bytes());
    if (tensors_.contains(fqn)) return InvalidArgument("{} is large on one rank and small on another", fqn);
    all.push_back(std::move(tensor));
  }
  PlaceTensors(all, others);
  for (size_t i = tensors_.size(); i < all.size(); ++i) {
    contents_.push_back({all[i].entry, values_[all[i].fqn].second.bytes});
    small_.emplace(all[i].fqn, std::move(all[i]));
  }
  return OkStatus();
}

Status StateDict::CheckNames() const {
  std::map<std::pair<std::string, Role>, std::string> taken;
  for (const auto* tensors : {&tensors_, &small_})
    for (const auto& [fqn, tensor] : *tensors) {
      const auto [at, added] = taken.try_emplace({tensor.entry.spec.name, tensor.entry.role}, fqn);
      if (!added)
        return InvalidArgument("{} and {} would both be {} of the step", at->second, fqn,
                               DisplayName(tensor.entry));
    }
  return OkStatus();
}

std::string StateDict::Json() const {
  nlohmann::json tensors = nlohmann::json::object(), values = nlohmann::json::object();
  nlohmann::json pickles = nlohmann::json::object();
  for (const auto* all : {&tensors_, &small_})
    for (const auto& [fqn, tensor] : *all)
      tensors[fqn] =
          WithPath({{"name", tensor.entry.spec.name}, {"role", Name(tensor.entry.role)}}, tensor.path);
  for (const auto& [fqn, value] : values_) {
    const nlohmann::json& said = value.second.value;
    const nlohmann::json path = said.value("path", nlohmann::json());
    if (said.contains("json")) values[fqn] = WithPath({{"json", said["json"]}}, path);
    if (said.contains("pickle")) pickles[fqn] = WithPath(nlohmann::json::object(), path);
  }
  return nlohmann::json{{"version", kVersion}, {"tensors", tensors}, {"values", values}, {"pickles", pickles}}
      .dump();
}

Status StateDict::Close() {
  CAIRN_RETURN_IF_ERROR(AddSmallTensors());
  CAIRN_RETURN_IF_ERROR(CheckNames());
  for (const auto& [fqn, value] : values_) {
    if (!value.second.value.contains("pickle")) continue;
    CAIRN_RETURN_IF_ERROR(CheckSize(fqn, value.second.bytes.size()));
    contents_.push_back({BytesEntry(fqn, Role::kPickle, value.second.bytes.size()), value.second.bytes});
  }
  std::string json = Json();
  CAIRN_RETURN_IF_ERROR(CheckSize("the state dict's values as JSON", json.size()));
  contents_.push_back({BytesEntry(kStateDictName, Role::kJson, json.size()), std::move(json)});
  return CheckPaths(Tensors());
}

DcpOptimizers StateDict::Optimizers() const {
  std::vector<DcpName> names;
  for (const auto* tensors : {&tensors_, &small_})
    for (const auto& [fqn, tensor] : *tensors) names.push_back(DcpNameOf(tensor));
  for (const auto& [fqn, value] : values_) names.push_back({fqn});
  return DcpOptimizersOf(names);
}

bool StateDict::OptimizersAreApart(const DcpOptimizers& optimizers) const {
  for (const auto* tensors : {&tensors_, &small_})
    for (const auto& [fqn, tensor] : *tensors)
      if (IsToldApart(fqn, tensor.entry.spec.name, optimizers)) return true;
  return false;
}

// The optimizer step, if it is a number and the same for every parameter. `plain`: the steps that are Python
// numbers.
std::optional<double> StateDict::OneStep(const std::set<double>& plain) const {
  std::set<double> steps = plain;
  for (const Content& content : contents_) {
    if (content.entry.role != Role::kStep) continue;
    if (content.entry.dtype != Dtype::kF32 || content.bytes.size() != sizeof(float)) return std::nullopt;
    float step = 0;
    std::memcpy(&step, content.bytes.data(), sizeof(step));
    steps.insert(step);
  }
  return steps.size() == 1 && std::isfinite(*steps.begin()) ? std::optional<double>(*steps.begin())
                                                            : std::nullopt;
}

nlohmann::json StateDict::ManifestState() const {
  nlohmann::json state = nlohmann::json::object(), other = nlohmann::json::object();
  const DcpOptimizers optimizers = Optimizers();
  std::set<double> steps;
  DcpParamGroups groups(optimizers);
  for (const auto& [fqn, value] : values_) {
    const nlohmann::json& said = value.second.value;
    if (!said.contains("json")) continue;
    const nlohmann::json plain = PlainValue(said["json"]);
    const auto path = PathTexts(said.value("path", nlohmann::json()));
    const auto place = DcpStatePlace(fqn, optimizers);
    if (DcpParamGroups::IsOne(fqn, path))
      groups.Add(fqn, path, plain);
    else if (plain.is_number())
      other[fqn] = plain;
    if (plain.is_number() && place && place->role == Role::kStep) steps.insert(plain.get<double>());
  }
  groups.PutInto(state, OptimizersAreApart(optimizers));
  if (const auto step = OneStep(steps)) {
    state["optimizer_step"] = static_cast<int64_t>(*step);
    state["one_optimizer_step"] = true;
  }
  if (!other.empty()) state["other"] = std::move(other);
  return state;
}

std::vector<TensorEntry> StateDict::Tensors() const {
  std::vector<TensorEntry> entries;
  for (const auto& [fqn, tensor] : tensors_) entries.push_back(tensor.entry);
  for (const Content& content : contents_) entries.push_back(content.entry);
  return entries;
}

Result<ReadStateDict> ParseStateDict(std::string_view text) {
  ReadStateDict read;
  const auto row = [&](std::string fqn, nlohmann::json where) -> Status {
    if (!where.is_object()) return Corrupt("{}: a tensor without a name", fqn);
    ReadStateDict::Tensor tensor{std::move(fqn), where.value("name", ""), where.value("role", ""), {}};
    if (const auto path = where.find("path"); path != where.end()) tensor.path = std::move(*path);
    read.tensors.push_back(std::move(tensor));
    return OkStatus();
  };
  CAIRN_ASSIGN_OR_RETURN(nlohmann::json json, ParseJsonRows(text, "tensors", row));
  if (!std::ranges::is_sorted(read.tensors, {}, &ReadStateDict::Tensor::fqn))  // every writer has sorted them
    std::ranges::sort(read.tensors, {}, &ReadStateDict::Tensor::fqn);
  const auto twice = std::ranges::adjacent_find(read.tensors, {}, &ReadStateDict::Tensor::fqn);
  if (twice != read.tensors.end()) return Corrupt("the key \"{}\" occurs twice", twice->fqn);
  if (!json.is_object() || json.value("version", 0) != kVersion)
    return NotSupported("a state dict of another version; use a newer cairn");
  for (const char* key : {"tensors", "values", "pickles"})
    if (const auto found = json.find(key); found == json.end() || !found->is_object())
      return Corrupt("a state dict without {}", key);
  read.values = std::move(json["values"]);
  read.pickles = std::move(json["pickles"]);
  return read;
}

}  // namespace cairn
