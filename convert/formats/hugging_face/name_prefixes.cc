#include "convert/formats/hugging_face/name_prefixes.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace cairn {
namespace {

struct Prefixes {
  std::set<std::string> all, bases;
  std::set<std::string> heads;  // their prefixes
  void Add(const NamePrefix& one) {
    (one.base ? all : heads).insert(one.prefix);
    if (one.base) bases.insert(*one.base);
  }
};

Status SeveralModels(const std::set<std::string>& begins) {
  return InvalidArgument("it has several models, behind '{}'; leave out others with --allow GLOB",
                         fmt::join(begins, "', '"));
}

Status CheckEndings(const std::set<std::string>& prefixes) {
  const auto longest = std::ranges::max_element(prefixes, {}, &std::string::size);
  for (const std::string& prefix : prefixes)
    if (!longest->ends_with(prefix)) return SeveralModels(prefixes);
  return OkStatus();
}

// A head lies beside the base model, or beside a module that the base model is in.
Status CheckHeads(const Prefixes& begins) {
  for (const std::string& head : begins.heads) {
    const auto is_around = [&](const std::string& base) { return base.starts_with(head); };
    if (begins.bases.empty() || std::ranges::any_of(begins.bases, is_around)) continue;
    std::set<std::string> all = begins.all;
    all.insert(head);
    return SeveralModels(all);
  }
  return OkStatus();
}

}  // namespace

// Frozen parameters, which no optimizer names, may have names with a prefix beside others without. Two models
// have prefixes of which none ends with the other.
Status NamePrefixes::Check(const std::set<uint32_t>& trained_places) const {
  Prefixes trained, others, weights, states;
  for (const auto& [state, place, prefix] : added_) {
    if (state) {
      states.Add(prefix);
    } else {
      weights.Add(prefix);
      (place && trained_places.contains(*place) ? trained : others).Add(prefix);
    }
  }
  CAIRN_RETURN_IF_ERROR(CheckEndings(weights.all));
  for (const Prefixes* of_one : {&trained, &others, &states})
    if (of_one->bases.size() > 1) return SeveralModels(of_one->all.size() > 1 ? of_one->all : of_one->bases);
  for (const Prefixes* prefixes : {&weights, &states}) CAIRN_RETURN_IF_ERROR(CheckHeads(*prefixes));
  return OkStatus();
}

}  // namespace cairn
