#include "ckpt/families/families.h"

#include <algorithm>
#include <stdexcept>

#include "ckpt/base/json_facts.h"
#include "ckpt/families/built_in_families.h"
#include "ckpt/families/family_reader.h"
#include "ckpt/io/strict_json.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxFamilyBytes = 1 << 20;

Families& AllFamilies() {
  static Families all = Families::BuiltIn();
  return all;
}

}  // namespace

Families Families::BuiltIn() {
  std::map<std::string, json> files;
  for (const FamilyText& family : BuiltInFamilies())
    files.emplace(fmt::format("the built-in {}", family.file), json::parse(family.text));
  Families built_in;
  if (const Status status = built_in.Add(files); !status.ok()) throw std::logic_error(status.message());
  return built_in;
}

Status Families::Add(const std::map<std::string, json>& files) {
  Families grown = *this;
  std::vector<std::string> names;
  for (const auto& [file, content] : files) {
    JsonFacts of(file + ": ", content);
    names.push_back(of.Text("name"));
    CAIRN_RETURN_IF_ERROR(of.status());
    if (const auto [other, added] = grown.file_of_.emplace(names.back(), file); !added)
      return InvalidArgument("{}: the family {} is already in {}; remove this file", file, names.back(),
                             other->second);
  }
  for (const std::string& name : names) CAIRN_RETURN_IF_ERROR(grown.Place(files, name));
  *this = std::move(grown);
  return OkStatus();
}

Status Families::Place(const std::map<std::string, json>& files, const std::string& name) {
  if (content_of_.contains(name)) return OkStatus();
  const std::string& file = file_of_.at(name);
  json content = files.at(file);
  const json like = content.value("like", json());
  if (!like.is_null()) {
    const auto other = like.is_string() ? file_of_.find(like.get<std::string>()) : file_of_.end();
    if (other == file_of_.end())
      return InvalidArgument("{}: like is {}, which is not a known family", file, like.dump());
    content_of_[name];  // a cycle finds an empty one
    CAIRN_RETURN_IF_ERROR(Place(files, other->first));
    const json& base = content_of_.at(other->first);
    if (base.is_null()) return InvalidArgument("{}: it is like {}, which is like it", file, other->first);
    CAIRN_ASSIGN_OR_RETURN(content, DerivedFamily(file, base, content));
  }
  CAIRN_ASSIGN_OR_RETURN(Family family, ReadFamily(file, content));
  content_of_[name] = std::move(content);
  all_.push_back(std::move(family));
  return OkStatus();
}

std::span<const Family> KnownFamilies() { return AllFamilies().all(); }

const Family* FindFamily(const std::string& name) {
  const auto all = KnownFamilies();
  const auto found = std::ranges::find(all, name, &Family::name);
  return found == all.end() ? nullptr : &*found;
}

std::string ModelTypeOf(const json& config) {
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() ? type->get<std::string>() : "";
}

Status AddFamilies(FileSystem& fs, const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  std::map<std::string, json> files;
  for (const std::string& name : names) {
    if (!name.ends_with(".json")) continue;
    const std::string path = JoinPath(directory, name);
    CAIRN_ASSIGN_OR_RETURN(files[path], ReadJsonObject(fs, path, kMaxFamilyBytes));
  }
  if (files.empty()) return NotFound("{}: it has no *.json files; each family is one file", directory);
  return AllFamilies().Add(files);
}

}  // namespace cairn
