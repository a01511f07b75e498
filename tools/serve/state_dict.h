// The values of a state dict other than large tensors: numbers, texts, lists, small tensors, Python objects.
// Every rank writes all its values; the rank that commits merges them.
//
// A group is everything below one top-level key, as a packet: {"values": {FQN: {"json": text} |
// {"pickle": [at, n]} | {"tensor": {"dtype", "shape", "data": [at, n]}}, each with an optional "path"}}, and
// the bytes that it points into. Ranks with the same group leave one file. JSON stays text, so values are
// restored exactly as Python wrote them. In the step: FORMAT.md, "State dicts".
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tools/serve/packet.h"
#include "tools/serve/state_table.h"

namespace cairn {

// The tensor (role json) with the names of all tensors and the values that JSON can express.
inline constexpr const char* kStateDictName = "state_dict";

// Limit for the JSON, and for each pickle.
inline constexpr uint64_t kMaxValueBytes = uint64_t{1} << 30;

// A value with the bytes that it points to.
struct StateValue {
  nlohmann::json value;
  std::string bytes;
  bool operator==(const StateValue&) const = default;
};

class StateDict {
 public:
  // Adds a group of rank `rank`; call in order of ranks. If values differ, the first one is kept. Errors:
  // Corrupt if it is not a group.
  Status Add(int rank, const Packet& group);
  // Adds the tensors that the rank holds in shards. Errors: InvalidArgument naming one that ranks disagree
  // on, or two with the same name in the step.
  Status Add(int rank, const std::vector<StateTensor>& table);

  // Gives small tensors their places. Call once, after all ranks were added. Errors: those of Add and
  // CheckPaths, and InvalidArgument naming a value larger than kMaxValueBytes.
  Status Close();

  // All tensors: those in shards, then the small ones, the pickles and the JSON.
  std::vector<TensorEntry> Tensors() const;
  // A value that is in no rank's shard; the rank that commits writes it.
  struct Content {
    TensorEntry entry;
    std::string bytes;
  };
  std::span<const Content> small_tensors() const { return std::span(contents_).first(small_.size()); }
  std::span<const Content> values() const { return std::span(contents_).subspan(small_.size()); }
  // State for the manifest, if the values have it: `param_groups`, `optimizer_step` if all parameters agree,
  // and plain numbers (`other`).
  nlohmann::json ManifestState() const;
  // "rank 3 had a different rng_state; rank 0's was kept", at most one line for each value.
  const std::vector<std::string>& differences() const { return differences_; }

 private:
  Status AddSmallTensors();
  Status CheckNames() const;
  std::string Json() const;
  DcpOptimizers Optimizers() const;
  bool OptimizersAreApart(const DcpOptimizers& optimizers) const;
  std::optional<double> OneStep(const std::set<double>& plain) const;

  std::map<std::string, StateTensor> tensors_;  // by FQN, in shards
  std::map<std::string, StateTensor> small_;
  std::map<std::string, std::pair<int, StateValue>> values_;  // and its rank
  std::set<std::string> differ_;
  std::vector<std::string> differences_;
  std::vector<Content> contents_;  // the small tensors first
};

// The JSON of a state dict, read back from a step. Errors: Corrupt.
struct ReadStateDict {
  struct Tensor {
    std::string fqn, name, role;
    nlohmann::json path;  // null if there is none
  };
  std::vector<Tensor> tensors;
  nlohmann::json values = nlohmann::json::object();   // FQN: {"json", "path"?}
  nlohmann::json pickles = nlohmann::json::object();  // FQN: {"path"?}
};
Result<ReadStateDict> ParseStateDict(std::string_view text);

}  // namespace cairn
