// A family that is like another one is derived as JSON, and then read as any other: a row's keys are checked
// in one place. A field that is dropped is false in every member, so conditions on it become "never" or
// "always". The checks after reading are those that all code relies on: each canonical module once and in a
// layout that fits, conditions on booleans, fields with the names that decide on sizes and function.

#include "ckpt/families/family_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "ckpt/base/json_facts.h"
#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

using nlohmann::json;

// In the order of the enumerators.
constexpr std::array<std::string_view, 4> kPackings = {"stacked", "transposed", "alternating", "grouped"};

constexpr std::pair<const char*, const char*> kRows[] = {
    {"modules", "name"}, {"fields", "model"}, {"in_memory", "name"}};
constexpr const char* kNotDerived[] = {"in_torchtitan", "states_in_torchtitan"};

// The row with this name, or list.end().
json::iterator FindRow(json& list, const char* key, const json& name) {
  return std::ranges::find_if(list, [&](const json& row) { return row.value(key, json()) == name; });
}

void DropCondition(const std::string& field, json& modules) {
  for (json& module : modules)
    for (const char* key : {"bias", "when", "weight"}) {
      const json condition = module.value(key, json());
      if (condition == field) module[key] = kNever;
      if (condition == "!" + field) module[key] = kAlways;
    }
}

Status Drop(const std::string& file, const std::string& name, json& family) {
  for (const auto& [list, key] : kRows)
    if (const auto row = FindRow(family[list], key, name); row != family[list].end()) {
      family[list].erase(row);
      if (list == std::string_view("fields")) DropCondition(name, family["modules"]);
      return OkStatus();
    }
  return InvalidArgument("{}: without '{}', which is not a module or field of {}", file, name,
                         family["name"].get<std::string>());
}

// Changes the row of the same name, or adds one: before another one if it says so.
Status AddRow(const std::string& file, const char* key, json row, json& list) {
  const json name = row.value(key, json());
  const auto same = FindRow(list, key, name);
  const json before = row.value("before", json());
  row.erase("before");
  if (before.is_null()) {
    same == list.end() ? list.push_back(row) : same->update(row);
    return OkStatus();
  }
  const auto place = FindRow(list, key, before);
  if (place == list.end() || same != list.end())
    return InvalidArgument("{}: {} cannot be before {}: {}", file, name.dump(), before.dump(),
                           same != list.end() ? "its place is already fixed" : "it does not exist");
  list.insert(place, row);
  return OkStatus();
}

// Reads the rows of one family, and then checks the table as a whole.
class Reader {
 public:
  Reader(const std::string& file, const json& content) : file_(file), content_(content) {}

  Result<Family> Read() {
    JsonFacts of(file_ + ": ", content_);
    (void)of.Text("about", "");
    family_ = {.name = of.Text("name"),
               .class_name = of.Text("class"),
               .base_prefix = of.Text("base_prefix", ""),
               .buffers = of.Texts("buffers"),
               .beyond = of.Texts("beyond"),
               .harmless = of.Texts("harmless"),
               .rare = of.Switch("rare"),
               .model = of.Object("model"),
               .config = of.Object("config"),
               .rope = of.Switch("rope")};
    const json modules = of.Rows("modules"), fields = of.Rows("fields"), refusals = of.Rows("refusals"),
               in_memory = of.Rows("in_memory"), in_torchtitan = of.Rows("in_torchtitan"),
               states_in_torchtitan = of.Rows("states_in_torchtitan");
    const json also = of.Object("rope_also"), copies = of.Object("copies");
    CAIRN_RETURN_IF_ERROR(of.NoUnknown());
    for (const json& row : modules) CAIRN_RETURN_IF_ERROR(ReadModule(row, family_.modules));
    for (const json& row : in_memory) CAIRN_RETURN_IF_ERROR(ReadModule(row, family_.in_memory));
    for (const json& row : in_torchtitan) CAIRN_RETURN_IF_ERROR(ReadModule(row, family_.in_torchtitan));
    for (const json& row : states_in_torchtitan)
      CAIRN_RETURN_IF_ERROR(ReadModule(row, family_.states_in_torchtitan));
    for (const json& row : fields) CAIRN_RETURN_IF_ERROR(ReadField(row));
    for (const json& row : refusals) CAIRN_RETURN_IF_ERROR(ReadRefusal(row));
    CAIRN_RETURN_IF_ERROR(ReadRopeKeys(also));
    CAIRN_RETURN_IF_ERROR(CheckModules());
    CAIRN_RETURN_IF_ERROR(ReadCopies(copies));
    CAIRN_RETURN_IF_ERROR(CheckFields());
    return std::move(family_);
  }

 private:
  // "llama.json: the module model.norm: "
  std::string Whose(const char* kind, const json& row, const char* key) const {
    const json name = row.value(key, json());
    return fmt::format("{}: the {} {}: ", file_, kind,
                       name.is_string() ? name.get<std::string>() : row.dump());
  }

  Status ReadModule(const json& row, std::vector<Module>& modules) {
    JsonFacts of(Whose("module", row, "name"), row);
    Module module{.name = of.Text("name"),
                  .canonical = of.Texts("canonical"),
                  .bias = of.Text("bias", kNever),
                  .when = of.Text("when", kAlways),
                  .weight = of.Text("weight", kAlways)};
    module.groups = of.Text("groups", module.groups.c_str());
    if (row.contains("suffixes")) module.suffixes = of.Texts("suffixes");
    const std::string layout = of.Text("layout", "stacked");
    CAIRN_RETURN_IF_ERROR(of.NoUnknown());
    const auto known = std::ranges::find(kPackings, layout);
    if (known == kPackings.end())
      return InvalidArgument("{}layout is '{}'; it must be one of {}", Whose("module", row, "name"), layout,
                             fmt::join(kPackings, ", "));
    if (module.suffixes.size() != 2)
      return InvalidArgument("{}suffixes must be two: of the weight and of the bias",
                             Whose("module", row, "name"));
    constexpr std::string_view kGroups[] = {"num_key_value_heads", "num_attention_heads",
                                            "linear_num_key_heads"};
    if (std::ranges::find(kGroups, module.groups) == std::end(kGroups))
      return InvalidArgument("{}groups is '{}'; it must be one of {}", Whose("module", row, "name"),
                             module.groups, fmt::join(kGroups, ", "));
    module.packing = static_cast<Packing>(known - kPackings.begin());
    modules.push_back(std::move(module));
    return OkStatus();
  }

  Status ReadField(const json& row) {
    JsonFacts of(Whose("field", row, "model"), row);
    Field field{of.Text("model"), of.Texts("config"), of.Value("fallback"), of.Switch("nullable")};
    CAIRN_RETURN_IF_ERROR(of.NoUnknown());
    if (field.config.empty())
      return InvalidArgument("{}config is missing; it must be a key of config.json, or a list of them",
                             Whose("field", row, "model"));
    family_.fields.push_back(std::move(field));
    return OkStatus();
  }

  Status ReadRefusal(const json& row) {
    JsonFacts of(Whose("refusal", row, "config"), row);
    Refusal refusal{of.Text("config"), of.Value("only"), of.Text("same_as", "")};
    CAIRN_RETURN_IF_ERROR(of.NoUnknown());
    if (refusal.only.is_null() == refusal.same_as.empty())
      return InvalidArgument("{}it needs either 'only' or 'same_as'", Whose("refusal", row, "config"));
    family_.refusals.push_back(std::move(refusal));
    return OkStatus();
  }

  Status ReadRopeKeys(const json& also) {
    JsonFacts of(file_ + ": rope_also: ", also);
    for (const char* key : {"rope_theta", "partial_rotary_factor"})
      if (const std::string other = of.Text(key, ""); !other.empty()) family_.rope_also[key] = other;
    CAIRN_RETURN_IF_ERROR(of.NoUnknown());
    const bool rotates = family_.model.position_embedding == "rope";
    if (family_.rope == rotates) return OkStatus();
    return InvalidArgument("{}: rope is {}, so model.position_embedding must {}be \"rope\"", file_,
                           family_.rope, family_.rope ? "" : "not ");
  }

  Status ReadCopies(const json& copies) {
    for (const auto& [name, of] : copies.items()) {
      const CanonicalModule* module =
          of.is_string() ? FindCanonicalModule(of.get_ref<const std::string&>()) : nullptr;
      if (module == nullptr || module->place == 0 || name.find(kLayerNumber) == std::string::npos)
        return InvalidArgument(
            "{}: copies: {} is {}; it must be a name with {{}} for the layer's number, and a canonical "
            "module outside the layers",
            file_, name, of.dump());
      family_.copies.emplace(name, of.get<std::string>());
    }
    return OkStatus();
  }

  bool HasField(const std::string& name) const {
    return std::ranges::find(family_.fields, name, &Field::name) != family_.fields.end();
  }

  bool IsSwitch(const std::string& name) const {
    return std::ranges::any_of(family_.fields, [&](const Field& field) {
      return field.name == name && (field.fallback.is_boolean() || field.nullable);
    });
  }

  Status CheckCondition(const Module& module, const char* key, std::string condition) {
    if (condition == kAlways || condition == kNever) return OkStatus();
    if (condition.starts_with('!')) condition.erase(0, 1);
    if (condition == kMixture && HasField(NameOf(&Model::num_experts))) return OkStatus();
    if (condition == kMtp && HasField(NameOf(&Model::mtp_layers))) return OkStatus();
    if (IsMixer(condition) && HasField(NameOf(&Model::layer_types))) return OkStatus();
    conditions_.insert(condition);
    if (IsSwitch(condition)) return OkStatus();
    return InvalidArgument(
        "{}: the module {}: {} depends on '{}', which is not a field whose fallback is true or false, or "
        "that may be null",
        file_, module.name, key, condition);
  }

  // Whether `groups` divides the rows of each of these heads.
  static bool CanGroup(const std::string& groups, ModelSize heads) {
    using E = ModelSizes;
    if (groups == NameOf(&Model::linear_num_key_heads))
      return heads == E::DeltaKeys || heads == E::DeltaValues || heads == E::DeltaHeads;
    return heads == E::Query || (heads == E::KeyValue && groups == NameOf(&Model::num_key_value_heads));
  }

  // Rows are the first dimension, or the second of experts.
  static bool HaveEqualRows(std::vector<ModelSize> a, std::vector<ModelSize> b, bool of_experts) {
    if (a.size() != b.size()) return false;
    const size_t rows = of_experts ? 1 : 0;
    a[rows] = b[rows];
    return a == b;
  }

  // Whether canonical modules fit in one stored tensor of this layout; else why not.
  std::string WhyNotTogether(const Module& module) const {
    if (module.canonical.empty()) return "canonical is missing; it must be one canonical module, or a list";
    const std::vector<ModelSize>* first = nullptr;
    for (const std::string& name : module.canonical) {
      const CanonicalModule* canonical = FindCanonicalModule(name);
      if (canonical == nullptr) return fmt::format("'{}' is not a canonical module (ckpt/FORMAT.md)", name);
      const std::vector<ModelSize>& extents = canonical->extents;
      if (first == nullptr) first = &extents;
      if (!HaveEqualRows(extents, *first, canonical->of_experts()))
        return fmt::format("'{}' and '{}' have rows of different sizes", module.canonical[0], name);
      if (module.by_expert() && !canonical->of_experts())
        return fmt::format("'{}' is not of experts, so the name must not have {{e}}", name);
      if (module.packing == Packing::kGrouped && !CanGroup(module.groups, extents[0]))
        return fmt::format("'{}' has no heads to group by {}", name, module.groups);
      const bool outside = canonical->place != 0;
      if (outside == (module.name.find("{}") != std::string::npos))
        return fmt::format("'{}' is {} each layer, so the name must {}have {{}} for the layer's number", name,
                           outside ? "not in" : "in", outside ? "not " : "");
    }
    return "";
  }

  Status CheckModules() {
    std::set<std::string> filled;
    CAIRN_RETURN_IF_ERROR(CheckModules(family_.modules, filled));
    if (!filled.contains("embedding.word"))
      return InvalidArgument("{}: modules have no embedding.word", file_);
    CAIRN_RETURN_IF_ERROR(CheckReplaced(filled, "in_memory", family_.in_memory));
    CAIRN_RETURN_IF_ERROR(CheckReplaced(filled, "states_in_torchtitan", family_.states_in_torchtitan));
    return CheckReplaced(filled, "in_torchtitan", family_.in_torchtitan);
  }

  // The modules of a state dict replace whole modules.
  Status CheckReplaced(const std::set<std::string>& filled, const char* key,
                       const std::vector<Module>& rows) {
    std::set<std::string> replaced;
    CAIRN_RETURN_IF_ERROR(CheckModules(rows, replaced));
    for (const std::string& name : replaced)
      if (!filled.contains(name)) return InvalidArgument("{}: {}: '{}' is in no module", file_, key, name);
    for (const Module& module : family_.modules)
      if (const auto part = std::ranges::count_if(
              module.canonical, [&](const std::string& name) { return replaced.contains(name); });
          part != 0 && std::cmp_not_equal(part, module.canonical.size()))
        return InvalidArgument("{}: {} has only a part of the module {}", file_, key, module.name);
    return OkStatus();
  }

  // `filled`: the canonical modules that they hold.
  Status CheckModules(const std::vector<Module>& modules, std::set<std::string>& filled) {
    std::set<std::string> stored;
    for (const Module& module : modules) {
      if (const std::string why = WhyNotTogether(module); !why.empty())
        return InvalidArgument("{}: the module {}: {}", file_, module.name, why);
      CAIRN_RETURN_IF_ERROR(CheckCondition(module, "bias", module.bias));
      CAIRN_RETURN_IF_ERROR(CheckCondition(module, "when", module.when));
      CAIRN_RETURN_IF_ERROR(CheckCondition(module, "weight", module.weight));
      for (const bool bias : {false, true})
        if (!stored.insert(module.Name(bias)).second)
          return InvalidArgument("{}: the tensor {} occurs twice", file_, module.Name(bias));
      for (const std::string& name : module.canonical)
        if (!filled.insert(name).second)
          return InvalidArgument("{}: the module {}: '{}' is in another module, too", file_, module.name,
                                 name);
    }
    return OkStatus();
  }

  bool HasMeaning(const std::string& name) const {
    return std::ranges::find(ModelFields(), name, &ModelField::name) != ModelFields().end() ||
           conditions_.contains(name);
  }

  Status CheckFields() const {
    const auto unknown = [&](const char* where, const std::string& name) {
      return InvalidArgument(
          "{}: {} {}: it decides neither on tensors nor on the function (ckpt/model/model.h); name "
          "its key in harmless",
          file_, where, name);
    };
    std::set<std::string> names;
    for (const Field& field : family_.fields) {
      if (!HasMeaning(field.name)) return unknown("the field", field.name);
      if (!names.insert(field.name).second)
        return InvalidArgument("{}: the field {} occurs twice", file_, field.name);
    }
    for (const auto& [name, value] : family_.model.rest.items())
      if (!HasMeaning(name)) return unknown("model:", name);
    for (const ModelField& field : ModelFields())
      if (field.required && !names.contains(field.name))
        return InvalidArgument("{}: fields have no {}", file_, field.name);
    return OkStatus();
  }

  const std::string& file_;
  const json& content_;
  Family family_;
  std::set<std::string> conditions_;
};

}  // namespace

Result<json> DerivedFamily(const std::string& file, const json& base, const json& own) {
  json family = base;
  for (const char* list : kNotDerived) family.erase(list);
  JsonFacts of(file + ": ", own);
  const std::vector<std::string> without = of.Texts("without");
  std::map<std::string, json> rows;
  for (const auto& [list, name] : kRows) rows[list] = of.Rows(list);
  CAIRN_RETURN_IF_ERROR(of.status());
  for (const std::string& name : without) CAIRN_RETURN_IF_ERROR(Drop(file, name, family));
  for (const auto& [list, name] : kRows)
    for (const json& row : rows[list]) CAIRN_RETURN_IF_ERROR(AddRow(file, name, row, family[list]));
  for (const auto& [key, value] : own.items()) {
    if (key == "like" || key == "without" || rows.contains(key)) continue;
    if (value.is_object() && family.value(key, json()).is_object())
      family[key].update(value);
    else
      family[key] = value;
  }
  return family;
}

Result<Family> ReadFamily(const std::string& file, const json& content) {
  return Reader(file, content).Read();
}

}  // namespace cairn
