// All families of models: those that are compiled in, and those of `--families DIR`.
#pragma once

#include <map>
#include <span>

#include "ckpt/families/family.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// Families by the files that they were read from.
class Families {
 public:
  // Those that are compiled in.
  static Families BuiltIn();

  // Adds families, each after the one that it is like. Errors: InvalidArgument naming the file and the key,
  // or two families of one name. Nothing is added then.
  Status Add(const std::map<std::string, nlohmann::json>& files);
  std::span<const Family> all() const { return all_; }

 private:
  Status Place(const std::map<std::string, nlohmann::json>& files, const std::string& name);

  std::map<std::string, std::string> file_of_;        // by the family's name
  std::map<std::string, nlohmann::json> content_of_;  // of those in `all_`, each by itself
  std::vector<Family> all_;
};

std::span<const Family> KnownFamilies();

// Null for an unknown name.
const Family* FindFamily(const std::string& name);
// model_type of a config.json; empty if it is missing or not a text.
std::string ModelTypeOf(const nlohmann::json& config);

// Adds the families in the *.json of a directory. Call it before the first use of KnownFamilies(): it moves
// them. Errors: those of Families::Add and of ReadJsonObject; NotFound if it has none.
Status AddFamilies(FileSystem& fs, const std::string& directory);

}  // namespace cairn
