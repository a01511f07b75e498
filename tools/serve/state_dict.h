// What a state dict has beside big tensors: numbers, texts, lists, small tensors, objects of Python. Every
// rank leaves all that it holds; the one that commits makes one of them.
//
// A group is what lies below one key at the top, as a packet: {"values": {FQN: {"json": text} |
// {"pickle": [at, n]} | {"tensor": {"dtype", "shape", "data": [at, n]}}, each with a "path" where it has
// one}}, and the bytes that it points into. Ranks whose group is the same leave one file. JSON stays text, so
// that values come back as Python wrote them. In the step: FORMAT.md, "State dicts".
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

// The tensor (role json) that holds the names of all tensors and the values that JSON can say.
inline constexpr const char* kStateDictName = "state_dict";

// Of the JSON, and of each pickle.
inline constexpr uint64_t kMaxValueBytes = uint64_t{1} << 30;

// A value with the bytes that it points to.
struct StateValue {
  nlohmann::json value;
  std::string bytes;
  bool operator==(const StateValue&) const = default;
};

class StateDict {
 public:
  // Adds what rank `rank` holds; ranks come in order. Of values that differ the first stays. Errors: Corrupt
  // where it is no group.
  Status Add(int rank, const Packet& group);
  // The tensors that ranks hold in shards. Errors: InvalidArgument naming one that ranks disagree on, or two
  // that have one name in the step.
  Status Add(int rank, const std::vector<StateTensor>& table);

  // Gives small tensors their places. To be called once, when all ranks were added. Errors: those of Add and
  // CheckPaths, and InvalidArgument naming what is larger than kMaxValueBytes.
  Status Close();

  // Of all: those in shards, then the small ones, the JSON and the pickles.
  std::vector<TensorEntry> Tensors() const;
  // What is in no rank's shard, and the committer writes.
  struct Content {
    TensorEntry entry;
    std::string bytes;
  };
  std::span<const Content> small_tensors() const { return std::span(contents_).first(small_.size()); }
  std::span<const Content> values() const { return std::span(contents_).subspan(small_.size()); }
  // For the manifest, as far as the values say them: `param_groups`, `optimizer_step` where all parameters
  // agree, and plain numbers (`other`).
  nlohmann::json ManifestState() const;
  // "rank 3 had another rng_state; rank 0's was kept", at most one line for each value.
  const std::vector<std::string>& differences() const { return differences_; }

 private:
  Status AddSmallTensors();
  Status CheckNames() const;
  std::string Json() const;
  std::set<std::string> Optimizers() const;
  bool OptimizersAreApart(const std::set<std::string>& optimizers) const;
  std::optional<double> OneStep(const std::set<double>& plain) const;

  std::map<std::string, StateTensor> tensors_;  // by FQN, in shards
  std::map<std::string, StateTensor> small_;
  std::map<std::string, std::pair<int, StateValue>> values_;  // and the rank that it is of
  std::set<std::string> differ_;
  std::vector<std::string> differences_;
  std::vector<Content> contents_;  // the small tensors first
};

// What Json() says, read back from a step. Errors: Corrupt.
struct ReadStateDict {
  nlohmann::json tensors = nlohmann::json::object();  // FQN: {"name", "role", "path"?}
  nlohmann::json values = nlohmann::json::object();   // FQN: {"json", "path"?}
  nlohmann::json pickles = nlohmann::json::object();  // FQN: {"path"?}
};
Result<ReadStateDict> ParseStateDict(std::string_view text);

}  // namespace cairn
