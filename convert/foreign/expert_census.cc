// A name is split at its first module of experts. A module of shared experts is not one: every token visits
// them. Problems are found by comparing what was found: the parts of an expert with those of the others, the
// number of experts with the router's rows and with the configuration.

#include "convert/foreign/expert_census.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ckpt/base/glob.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/base/short_list.h"
#include "ckpt/base/split_text.h"
#include "ckpt/families/hugging_face_config.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr const char* kRouters[] = {"router.weight", "gate.weight", "router.gate.weight", "gate.wg.weight"};
constexpr size_t kListed = 4;       // of missing experts
constexpr uint64_t kMostLike = 64;  // experts that have a part in another form: the most to look at

bool HasExperts(std::string_view module) {
  return module.ends_with("experts") && !module.starts_with("shared");
}

std::optional<uint64_t> NumberIn(std::string_view module) {
  const auto number = ParseNumber<uint64_t>(module);
  return number && *number < kMaxExperts ? number : std::nullopt;
}

// A module of an adapter (of peft, torchtune, NeMo), which may be on some experts only.
bool IsOfAdapter(std::string_view module) {
  constexpr const char* kAdapters[] = {"lora_", "adapter", "ia3_",  "hada_",
                                       "lokr_", "oft_",    "boft_", "vera_"};
  return std::ranges::any_of(kAdapters, [&](const char* adapter) { return module.starts_with(adapter); });
}

struct Place {
  std::string mixture;
  ExpertTensor tensor;
};

// The place of a tensor among experts; nullopt if it has none.
std::optional<Place> PlaceOf(const TensorEntry& tensor) {
  const std::vector<std::string_view> modules = SplitText(tensor.spec.name, '.');
  const auto first = std::ranges::find_if(modules, HasExperts);
  if (first == modules.end() || first == modules.begin() || first + 1 == modules.end()) return std::nullopt;
  Place place{fmt::format("{}", fmt::join(modules.begin(), first, ".")), {}};
  auto rest = first + 1;
  while (rest != modules.end() && HasExperts(*rest)) ++rest;  // "experts.local_experts"
  const Dims& shape = tensor.spec.shape;
  const auto number = rest == modules.end() ? std::nullopt : NumberIn(*rest);
  const bool all = tensor.spec.of_experts || (!number && shape.rank() == 3);
  if ((!all && !number) || std::any_of(rest, modules.end(), IsOfAdapter)) return std::nullopt;
  place.tensor.part = fmt::format("{}", fmt::join(all ? rest : rest + 1, modules.end(), "."));
  place.tensor.first = all ? 0 : *number;
  place.tensor.count = all ? shape[0] : 1;
  return place;
}

class Counter {
 public:
  Counter(const std::vector<TensorEntry>& tensors, const Model& model) : tensors_(tensors), model_(model) {}

  ExpertCensus Count() {
    for (uint32_t i = 0; i < tensors_.size(); ++i)
      if (!IsOpaque(tensors_[i].role)) Add(i);
    FindRouters();
    CheckParts();
    const double stated =
        StatedNumber(model_, {NameOf(&Model::num_experts), "num_local_experts", "n_routed_experts"}, 0);
    for (uint32_t i = 0; i < census_.mixtures.size(); ++i)
      CheckNumber(i, static_cast<uint64_t>(std::min(1e18, stated)));
    for (const auto& [key, layers] : found_)
      (key.first ? census_.lost : census_.notes).push_back(ShortList(layers) + ": " + key.second);
    NoteMissingPredictions();
    return std::move(census_);
  }

 private:
  void Add(uint32_t tensor) {
    std::optional<Place> place = PlaceOf(tensors_[tensor]);
    if (!place) return;
    auto& mixtures = census_.mixtures;
    const auto [found, added] = number_of_.try_emplace(place->mixture, mixtures.size());
    if (added) mixtures.push_back({place->mixture});
    place->tensor.mixture = found->second;
    Mixture& mixture = mixtures[found->second];
    mixture.experts = std::max(mixture.experts, place->tensor.first + place->tensor.count);
    census_.tensors.emplace(tensor, std::move(place->tensor));
  }

  void FindRouters() {
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].role != Role::kWeight || tensors_[i].spec.shape.rank() != 2) continue;
      for (const char* router : kRouters) {
        const std::string& name = tensors_[i].spec.name;
        if (!name.ends_with(router) || name.size() <= std::strlen(router) + 1) continue;
        const auto found = number_of_.find(name.substr(0, name.size() - std::strlen(router) - 1));
        if (found != number_of_.end()) census_.mixtures[found->second].router = i;
      }
    }
  }

  using PartsOfExperts =
      std::map<std::pair<uint32_t, uint64_t>, std::set<std::string>>;  // by mixture, expert

  // True if the expert has the part in another form, as of another quantization, or has what it is about.
  static bool HasLike(const std::string& part, const std::set<std::string>& own) {
    const std::string beside = part.substr(0, part.rfind('.') + 1);  // empty without a dot
    if (part.ends_with("bias")) return false;
    for (size_t dot = part.find('.'); dot != part.npos; dot = part.find('.', dot + 1))
      if (own.contains(part.substr(0, dot))) return true;
    const auto is_like = [&](const std::string& name) {
      return name.starts_with(beside) && !name.ends_with("bias");
    };
    return !beside.empty() && std::any_of(own.lower_bound(beside), own.end(), is_like);
  }

  // Each part of one expert is there of all of them, in each role that it has.
  void CheckParts() {
    std::map<std::tuple<uint32_t, std::string, Role>, std::set<uint64_t>> parts;
    PartsOfExperts own;
    for (const auto& [number, tensor] : census_.tensors) {
      if (tensor.count != 1) continue;
      parts[{tensor.mixture, tensor.part, tensors_[number].role}].insert(tensor.first);
      own[{tensor.mixture, tensor.first}].insert(tensor.part);
    }
    for (const auto& [key, experts] : parts) {
      const auto& [mixture, part, role] = key;
      const uint64_t all = census_.mixtures[mixture].experts;
      if (experts.size() == all) continue;
      std::vector<uint64_t> missing;
      uint64_t like = 0;
      for (uint64_t expert = 0; missing.size() < kListed && like < kMostLike && expert < all; ++expert) {
        if (experts.contains(expert)) continue;
        const auto found = own.find({mixture, expert});
        if (role == Role::kWeight && found != own.end() && HasLike(part, found->second))
          ++like;
        else
          missing.push_back(expert);
      }
      if (missing.empty()) continue;
      const uint64_t more = all - experts.size() - missing.size() - like;
      // Without a gradient an optimizer makes no state.
      const bool lost = role == Role::kWeight || role == Role::kMaster;
      Report(lost, mixture,
             fmt::format("{} of {} experts have {}{}; experts without it: {}{}", experts.size(), all, part,
                         OfRole(role), fmt::join(missing, ", "),
                         more == 0 ? "" : fmt::format(" and {} more", more)));
    }
  }

  static std::string OfRole(Role role) { return role == Role::kWeight ? "" : fmt::format("/{}", Name(role)); }

  // `stated`: by the configuration; 0: not.
  void CheckNumber(uint32_t number, uint64_t stated) {
    const Mixture& mixture = census_.mixtures[number];
    const uint64_t rows = mixture.router ? tensors_[*mixture.router].spec.shape[0] : 0;
    const bool of_config = model_.num_experts.is_null();  // a model that was read must have what it says
    if (of_config && stated > mixture.experts && rows == mixture.experts)
      return Report(false, number,
                    fmt::format("pruned: files and router have {} of the configuration's {} experts",
                                mixture.experts, stated));
    if (stated > mixture.experts)
      return Report(true, number, fmt::format("the files hold {} of {} experts", mixture.experts, stated));
    if (stated > 0 && stated < mixture.experts)
      return Report(
          true, number,
          fmt::format("the files hold {} experts, the configuration has {}", mixture.experts, stated));
    if (!mixture.router) return;
    // A router may have rows of its own for experts without parameters.
    if (rows == mixture.experts || (stated > 0 && rows > stated)) return;
    Report(true, number,
           fmt::format("the files hold {} experts, but the router has a row for each of {}", mixture.experts,
                       rows));
  }

  void Report(bool lost, uint32_t mixture, std::string what) {
    found_[{lost, std::move(what)}].push_back(census_.mixtures[mixture].name);
  }

  // Every save_pretrained drops these layers; config.json still counts them.
  void NoteMissingPredictions() {
    const double stated =
        StatedNumber(model_, {"num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"}, 0);
    const double layers = StatedNumber(model_, {NameOf(&Model::num_layers), "num_hidden_layers"}, 0);
    const auto predicts = [&](const TensorEntry& tensor) {
      const std::vector<std::string_view> modules = SplitText(tensor.spec.name, '.');
      for (size_t i = 0; i < modules.size(); ++i) {
        if (modules[i].starts_with("mtp")) return true;
        const auto layer = i > 0 && modules[i - 1] == "layers" ? NumberIn(modules[i]) : std::nullopt;
        if (layer && layers > 0 && static_cast<double>(*layer) >= layers) return true;
      }
      return false;
    };
    if (stated <= 0 || std::ranges::any_of(tensors_, predicts)) return;
    census_.notes.push_back(fmt::format(
        "the configuration has multi-token prediction (layers: {}), and no tensor of it is read", stated));
  }

  const std::vector<TensorEntry>& tensors_;
  const Model& model_;
  std::map<std::string, uint32_t> number_of_;                               // of a mixture, by name
  std::map<std::pair<bool, std::string>, std::vector<std::string>> found_;  // layers, by the sentence
  ExpertCensus census_;
};

}  // namespace

ExpertCensus TakeCensus(const std::vector<TensorEntry>& tensors, const Model& model) {
  return Counter(tensors, model).Count();
}

Status WhyNotRead(const std::string& checkpoint, const Status& why, const StoredNames& names,
                  const std::vector<std::string>& allow) {
  ExpertCensus census = TakeCensus(names.tensors, names.model);
  AllowLost(allow, census);
  if (census.lost.empty()) return why;
  return Corrupt("{}: {}; besides, {}", checkpoint, census.lost.front(), why.message());
}

void AllowLost(const std::vector<std::string>& allow, ExpertCensus& census) {
  if (!FitsAnyGlob("experts", allow)) return;
  std::ranges::move(census.lost, std::back_inserter(census.notes));
  census.lost.clear();
}

std::string ToString(const std::vector<Mixture>& mixtures) {
  if (mixtures.empty()) return "";
  const auto [least, most] = std::ranges::minmax(mixtures, {}, &Mixture::experts);
  const std::string experts = least.experts == most.experts
                                  ? std::to_string(most.experts)
                                  : fmt::format("{} to {}", least.experts, most.experts);
  return mixtures.size() == 1 ? fmt::format("{} experts in one layer", experts)
                              : fmt::format("{} experts in each of {} layers", experts, mixtures.size());
}

double StatedNumber(const Model& model, const std::vector<const char*>& keys, double fallback) {
  const json read = KeptOfHuggingFace(model, "config"), &own = model.Get("config");
  const json part = own.is_object() ? own.value("text_config", json()) : json();
  for (const json& object : {json(model), read, own, part})
    for (const char* key : keys)
      if (const json found = object.is_object() ? object.value(key, json()) : json();
          found.is_number() && found.get<double>() > 0)
        return found.get<double>();
  return fallback;
}

}  // namespace cairn
