// The names of the tensors of a transformers model in memory and in its files, for types that no family's
// table describes.
//
// transformers 5 holds some types under other names than it saves: experts stacked, matrices joined or cut,
// modules renamed. generated/transformers.json has a rule for each such tensor. scripts/transformers-rules
// writes that table from what transformers itself does with each type; a rule in it has been seen to hold.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// Tensors that hold the same elements one after the other, along their first dimension. One side is one
// tensor: joined in memory and in equal chunks in files (torch.chunk), or the other way round. Names with {e}
// are of one index of the first dimension of the one in memory, an expert; {} stands for any other number.
struct NamesRow {
  std::vector<std::string> memory, files;

  bool by_expert() const { return files[0].find("{e}") != std::string::npos; }
  bool is_rename() const { return memory.size() == 1 && files.size() == 1 && !by_expert(); }
};

// A name as a row has it. Numbers are the parts of a name between dots that are one.
struct NumberedName {
  explicit NumberedName(const std::string& name);

  std::string pattern;  // each number is {}
  std::vector<uint64_t> numbers;
};
// The name of a row, of these numbers without that of the expert.
std::string FilledName(const std::string& name, const std::vector<uint64_t>& numbers, uint64_t expert = 0);

class MemoryNames {
 public:
  struct Found {
    const NamesRow* row = nullptr;
    size_t index = 0;               // into its names of that side
    std::vector<uint64_t> numbers;  // without the expert's
    uint64_t expert = 0;
  };

  // `group`: of the table, which is trusted.
  MemoryNames(const std::string& type, const nlohmann::json& group);
  MemoryNames(const MemoryNames&) = delete;
  MemoryNames& operator=(const MemoryNames&) = delete;

  // `row` is null if no rule has the name.
  Found InMemory(const std::string& name) const { return Find(of_memory_, name); }
  Found InFiles(const std::string& name) const { return Find(of_files_, name); }
  // True if transformers may convert a tensor of this name, which no rule has.
  bool IsUnknown(const std::string& name) const;

  const std::string& class_name() const { return class_name_; }
  // A tensor that each such model has, in memory; and in files, if that is another name.
  const std::string& first() const { return first_; }
  // Tensors that are copies of others if the configuration ties them: the original by the copy, in memory.
  std::map<std::string, std::string> Tied(const nlohmann::json& config) const;
  // Originals whose optimizer's states torch gives the name of a copy, which comes first in the model: that
  // name by the original.
  const std::map<std::string, std::string>& trained() const { return trained_; }

 private:
  using Index = std::unordered_map<std::string, std::pair<size_t, size_t>>;  // of patterns: row, name
  Found Find(const Index& index, const std::string& name) const;
  void AddRow(NamesRow row);

  std::string class_name_, first_;
  std::map<std::string, std::string> tied_, trained_;
  bool ties_ = false;  // if the configuration does not say
  std::vector<NamesRow> rows_;
  std::set<std::string> same_;        // patterns of names that are converted to themselves
  std::vector<std::string> touched_;  // each name that is converted has one of these texts
  Index of_memory_, of_files_;
};

// Those of the type in a config.json; null if transformers has no such type. Errors: NotSupported for a type
// of transformers, or a class of it, that the table does not have, or whose names no rules can express.
Result<std::shared_ptr<const MemoryNames>> FindMemoryNames(const nlohmann::json& config);

// How tensor parallelism cuts the tensors of a type's files, as transformers' own plan says (tp_plan).
struct TypeCuts {
  std::map<std::string, int> dimensions;  // by the pattern of a name
  std::string why;                        // there are none
};
TypeCuts CutsOfType(const nlohmann::json& config);

}  // namespace cairn
