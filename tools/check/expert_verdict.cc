// Models are initialized with normally distributed values of mean 0 and a known standard deviation. Mean,
// variance and fourth moment of such values lie within a few standard errors, those of a trained matrix do
// not: the three of them match by chance in none. An expert is "initial" if they match in each of its
// matrices. Another one is "trained" if its variance changed by 4 times as much as an initial one's can have
// without being noticed (16 times, for whole ranks to be lost): each update moves values alike, so the
// initial one had few updates, or none.
//
// Status 1 is for what no program can have meant. Experts are lost if they are those of whole expert parallel
// ranks (of several experts each), in every layer: copies of another rank's in a trained model, or initial
// beside trained ones, unless the optimizer says that nothing updated them. So is an initial expert whose
// second moments are as large as those of trained ones. All else is a note: one frozen expert, a merge, an
// upcycled or a grown model look like a lost expert.

#include "tools/check/expert_verdict.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "ckpt/base/short_list.h"

namespace cairn {
namespace {

constexpr double kErrors = 5;          // standard errors within which values are initial
constexpr double kContrast = 4;        // of variances: trained ones moved twice as far
constexpr double kClear = 16;          // the same, for whole ranks to be lost
constexpr double kLeastEffect = 0.25;  // on the variance of a trained matrix
constexpr uint64_t kLeastElements = 256;
constexpr double kUsualRange = 0.02;  // of transformers and Megatron

using Experts = std::set<uint64_t>;

// The experts of a layer, judged one by one.
struct Layer {
  const Mixture* mixture = nullptr;
  Experts initial = {}, trained = {};
  bool clear = false;                       // some are trained beyond doubt
  std::map<uint64_t, double> moments = {};  // the sum of the second ones, of each expert that has them

  Experts unmoved() const {
    Experts zero;
    for (const auto& [expert, sum] : moments)
      if (sum == 0) zero.insert(expert);
    return zero;
  }
  bool updated() const { return unmoved().size() < moments.size(); }
};

// "4 to 7 and 12"
std::string RangesOf(const Experts& experts) {
  std::vector<std::string> ranges;
  for (auto first = experts.begin(); first != experts.end();) {
    auto last = first;
    while (std::next(last) != experts.end() && *std::next(last) == *last + 1) ++last;
    ranges.push_back(first == last ? std::to_string(*first) : fmt::format("{} to {}", *first, *last));
    first = std::next(last);
  }
  return (experts.size() == 1 ? "expert " : "experts ") + ShortList(ranges);
}

// Whole ranks of an expert parallel group that does not have one expert a rank only.
bool AreWholeRanks(const Experts& experts, uint64_t all) {
  for (uint64_t own = 2; own < all; ++own) {
    if (all % own != 0) continue;
    const auto whole = [&](uint64_t expert) {
      for (uint64_t i = expert / own * own; i < (expert / own + 1) * own; ++i)
        if (!experts.contains(i)) return false;
      return true;
    };
    if (std::ranges::all_of(experts, whole)) return true;
  }
  return false;
}

class Judge {
 public:
  Judge(const Manifest& manifest, const ExpertCensus& census, const ExpertValues& values)
      : manifest_(manifest),
        census_(census),
        values_(values),
        range_(StatedNumber(manifest.model, {"initializer_range"}, kUsualRange)),
        scaled_(range_ / std::sqrt(2 * StatedNumber(manifest.model,
                                                    {NameOf(&Model::num_layers), "num_hidden_layers"}, 1))) {}

  ExpertVerdict Run() {
    for (uint32_t i = 0; i < census_.mixtures.size(); ++i) layers_.push_back(Look(i));
    JudgeEqual();
    JudgeInitial();
    JudgeUnmoved();
    return std::move(verdict_);
  }

 private:
  // Within a few standard errors of the moments of normally distributed values.
  static bool IsNormal(const ValueStats& stats, double range) {
    const auto n = static_cast<double>(stats.count);
    const double variance = stats.squares / n;
    return stats.nan + stats.infinite == 0 && std::abs(stats.sum) < kErrors * range * std::sqrt(n) &&
           std::abs(variance / (range * range) - 1) < kErrors * std::sqrt(2 / n) &&
           std::abs(stats.fourths / n / (variance * variance) - 3) < kErrors * std::sqrt(24 / n);
  }
  bool IsInitial(const ValueStats& stats) const {
    return stats.count >= kLeastElements && (IsNormal(stats, range_) || IsNormal(stats, scaled_));
  }
  bool IsTrained(const ValueStats& stats, double contrast = kContrast) const {
    const auto n = static_cast<double>(stats.count);
    const auto effect = [&](double range) { return std::abs(stats.squares / n / (range * range) - 1); };
    return stats.count >= kLeastElements && stats.squares > 0 &&
           std::min(effect(range_), effect(scaled_)) >
               std::max(kLeastEffect, contrast * kErrors * std::sqrt(2 / n));
  }

  static std::vector<const ExpertPart*> PartsOf(const ExpertValues::Parts& parts, uint32_t mixture) {
    std::vector<const ExpertPart*> own;
    for (auto at = parts.lower_bound({mixture, ""}); at != parts.end() && at->first.first == mixture; ++at)
      own.push_back(&at->second);
    return own;
  }

  Layer Look(uint32_t mixture) const {
    struct Matrices {
      size_t all = 0, initial = 0, trained = 0;
    };
    Layer layer{&census_.mixtures[mixture]};
    std::map<uint64_t, Matrices> experts;
    for (const ExpertPart* part : PartsOf(values_.weights(), mixture))
      for (const auto& [expert, value] : part->experts) {
        if (!part->matrix) continue;
        Matrices& matrices = experts[expert];
        ++matrices.all;
        matrices.initial += IsInitial(value.stats);
        matrices.trained += IsTrained(value.stats);
        layer.clear |= IsTrained(value.stats, kClear);
      }
    for (const auto& [expert, matrices] : experts) {
      if (matrices.initial == matrices.all) layer.initial.insert(expert);
      if (matrices.trained > 0) layer.trained.insert(expert);
    }
    for (const ExpertPart* part : PartsOf(values_.second_moments(), mixture))
      for (const auto& [expert, value] : part->experts) layer.moments[expert] += value.stats.sum;
    return layer;
  }

  bool IsAnyTrained() const {
    if (std::ranges::any_of(layers_, [](const Layer& layer) { return !layer.trained.empty(); })) return true;
    size_t trained = 0, matrices = 0;
    for (const auto& [tensor, stats] : values_.others()) {
      matrices += stats.count >= kLeastElements;
      trained += IsTrained(stats);
    }
    return matrices > 0 && 2 * trained > matrices;
  }

  // A router is new in a model that was just made of copies.
  bool WasTrained(const Layer& layer) const {
    if (layer.updated() || IntField(manifest_.state, "iteration") > 0) return true;
    if (!layer.mixture->router) return false;
    const auto router = values_.others().find(*layer.mixture->router);
    return router != values_.others().end() && IsTrained(router->second);
  }

  // A sentence about these layers.
  void Report(bool lost, const std::string& what, const std::vector<std::string>& where) {
    (lost ? verdict_.lost : verdict_.notes).push_back(fmt::format("{}: {}", ShortList(where), what));
  }

  using Copies = std::vector<std::vector<uint64_t>>;  // equal experts

  static Copies CopiesIn(const ExpertPart& part) {
    std::map<Digest, std::vector<uint64_t>> experts;
    for (const auto& [expert, value] : part.experts)
      if (!value.is_constant()) experts[value.digest].push_back(expert);
    Copies copies;
    for (auto& [digest, equal] : experts)
      if (equal.size() > 1) copies.push_back(std::move(equal));
    std::ranges::sort(copies);
    return copies;
  }

  // Each rank of some size that has a copied expert is a copy as a whole.
  static bool AreCopiedRanks(const Copies& copies, uint64_t all) {
    for (uint64_t own = 2; own < all; ++own) {
      if (all % own != 0) continue;
      std::map<std::vector<uint64_t>, uint64_t> copied;  // experts in equal ranks
      bool fits = true;
      for (const std::vector<uint64_t>& equal : copies) {
        std::vector<uint64_t> ranks;
        for (const uint64_t expert : equal) {
          fits &= expert % own == equal[0] % own;
          ranks.push_back(expert / own);
        }
        ++copied[ranks];
      }
      if (fits && std::ranges::all_of(copied, [&](const auto& one) { return one.second == own; }))
        return true;
    }
    return false;
  }

  // The router of a mixture that was doubled on purpose was doubled, too.
  bool IsRouterCopied(const Copies& copies) const {
    return std::ranges::any_of(values_.routers(),
                               [&](const auto& router) { return CopiesIn(router.second) == copies; });
  }

  void JudgeEqual() {
    std::map<Copies, std::vector<std::string>> found;  // names of matrices
    bool trained = false;
    for (const auto& [key, part] : values_.weights()) {
      if (!part.matrix) continue;
      found[CopiesIn(part)].push_back(part.name);
      trained |= WasTrained(layers_[key.first]);
    }
    const bool lost = trained && found.size() == 1 && !found.begin()->first.empty() &&
                      AreCopiedRanks(found.begin()->first, layers_.front().mixture->experts) &&
                      !IsRouterCopied(found.begin()->first);
    for (const auto& [copies, where] : found) {
      if (copies.empty()) continue;
      std::vector<std::string> groups;
      for (const std::vector<uint64_t>& equal : copies)
        groups.push_back(ShortList(
            equal.size(), [&equal](size_t i) { return std::to_string(equal[i]); }, 8, " = "));
      Report(lost,
             fmt::format("experts {} are equal bit for bit: {}", ShortList(groups),
                         lost ? "those of one rank were saved in place of another's"
                              : "the model was made of copies (upcycled, merged), or one was saved in place "
                                "of another"),
             where);
    }
  }

  // One of the experts has been updated about as often as the trained ones.
  static bool AnyWasUpdated(const Layer& layer) {
    std::vector<double> trained;
    for (const uint64_t expert : layer.trained)
      if (const auto found = layer.moments.find(expert); found != layer.moments.end())
        trained.push_back(found->second);
    if (trained.empty()) return false;
    const auto median = trained.begin() + static_cast<ptrdiff_t>(trained.size() / 2);
    std::ranges::nth_element(trained, median);
    return std::ranges::any_of(layer.initial, [&](uint64_t expert) {
      const auto found = layer.moments.find(expert);
      return found != layer.moments.end() && found->second > 0 && found->second >= *median / 4;
    });
  }

  // The same experts in all layers, beside trained ones.
  bool AreLostRanks() const {
    const Experts& first = layers_.front().initial;
    return layers_.size() > 1 && std::ranges::all_of(layers_, [&](const Layer& layer) {
             return layer.clear && layer.initial == first && AreWholeRanks(first, layer.mixture->experts);
           });
  }

  // Why initial experts may be as they should be, as far as the optimizer tells; empty if it does not.
  std::string EvidenceFor(const Layer& layer) const {
    const auto has = [&](uint64_t expert) { return layer.moments.contains(expert); };
    if (values_.any_second_moments() && std::ranges::none_of(layer.initial, has))
      return "frozen, the optimizer has no state of them";
    const Experts unmoved = layer.unmoved();
    if (layer.updated() && std::ranges::includes(unmoved, layer.initial))
      return "no token was routed there yet, or their gradients are masked: their moments are zero";
    return "";
  }

  void JudgeInitial() {
    if (layers_.empty() || !IsAnyTrained()) return;
    const bool ranks = !layers_.front().initial.empty() && AreLostRanks();
    std::map<std::tuple<bool, Experts, std::string>, std::vector<std::string>> found;
    for (const Layer& layer : layers_) {
      if (layer.initial.empty()) continue;
      std::string why = EvidenceFor(layer);
      const bool lost = (layer.clear && AnyWasUpdated(layer)) || (ranks && why.empty());
      if (lost)
        why = "lost in a save or a conversion";
      else if (why.empty())
        why = "frozen, new, not reached by a token yet, or lost in a save or a conversion";
      found[{lost, layer.initial, why}].push_back(layer.mixture->name);
    }
    for (const auto& [key, where] : found) {
      const auto& [lost, experts, why] = key;
      Report(lost,
             fmt::format("{} {} the values of an initialization (standard deviation {:g}), while others were "
                         "trained: {}",
                         RangesOf(experts), experts.size() == 1 ? "has" : "have", range_, why),
             where);
    }
  }

  // Initial experts have a sentence of their own.
  void JudgeUnmoved() {
    std::map<Experts, std::vector<std::string>> found;
    for (const Layer& layer : layers_)
      if (const Experts unmoved = layer.unmoved();
          layer.updated() && !unmoved.empty() && unmoved != layer.initial)
        found[unmoved].push_back(layer.mixture->name);
    for (const auto& [unmoved, where] : found)
      Report(
          false,
          fmt::format("the exp_avg_sq of {} is zero, that of others is not: no token was routed there yet, "
                      "their gradients are masked, or the optimizer's state was lost",
                      RangesOf(unmoved)),
          where);
  }

  const Manifest& manifest_;
  const ExpertCensus& census_;
  const ExpertValues& values_;
  const double range_;   // standard deviation of an initialization
  const double scaled_;  // that of output layers, as Megatron initializes them
  std::vector<Layer> layers_;
  ExpertVerdict verdict_;
};

}  // namespace

ExpertVerdict JudgeExperts(const Manifest& manifest, const ExpertCensus& census, const ExpertValues& values) {
  return Judge(manifest, census, values).Run();
}

}  // namespace cairn
