// What the values of a checkpoint's experts are, gathered while its tensors stream by: a digest and a few
// sums for each matrix of each expert.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/digest.h"
#include "convert/foreign/expert_census.h"
#include "convert/stream/value_stats.h"

namespace cairn {

struct ExpertValue {
  ValueStats stats;
  Digest digest{};

  // Factors of an adapter that begin with zeros, say.
  bool is_constant() const { return stats.nan == 0 && stats.infinite == 0 && stats.min == stats.max; }
};

// One matrix or vector of the experts of a layer, in one role.
struct ExpertPart {
  std::string name;  // of the first tensor that has it
  bool matrix = false;
  std::map<uint64_t, ExpertValue> experts;
};

class ExpertValues {
 public:
  using Parts = std::map<std::pair<uint32_t, std::string>, ExpertPart>;  // by mixture and part of an expert

  // Both outlive it.
  ExpertValues(const std::vector<TensorEntry>& tensors, const ExpertCensus& census);

  // All bytes of a tensor come in row-major order, before those of the next one.
  void Add(uint32_t tensor, std::span<const std::byte> bytes);

  const Parts& weights() const { return weights_; }  // masters of a checkpoint without weights
  const Parts& second_moments() const { return second_moments_; }
  // The rows of each mixture's router, as "experts".
  const std::map<uint32_t, ExpertPart>& routers() const { return routers_; }
  // The optimizer has some, of experts or not.
  bool any_second_moments() const { return any_second_moments_; }
  // Matrices of weights that are not of experts, by number in the catalog.
  const std::map<uint32_t, ValueStats>& others() const { return others_; }

 private:
  ExpertPart* PartOf(uint32_t tensor, const ExpertTensor& place);
  ExpertPart* RouterOf(uint32_t tensor);  // null: it is not a router
  void Begin(uint32_t tensor);

  const std::vector<TensorEntry>& tensors_;
  const ExpertCensus& census_;
  std::set<std::string> weight_names_;
  Parts weights_, second_moments_;
  std::map<uint32_t, ExpertPart> routers_;  // by mixture
  std::map<uint32_t, uint32_t> router_of_;  // the mixture of a router
  std::map<uint32_t, ValueStats> others_;
  bool any_second_moments_ = false;
  // The tensor at hand.
  uint32_t tensor_ = UINT32_MAX;
  ExpertPart* part_ = nullptr;   // null: not one of experts
  ValueStats* other_ = nullptr;  // null: its values do not matter
  uint64_t expert_ = 0;          // that comes now
  uint64_t expert_bytes_ = 0, left_ = 0;
  Hasher hasher_;
};

}  // namespace cairn
