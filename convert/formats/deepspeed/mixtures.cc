#include "convert/formats/deepspeed/mixtures.h"

#include <algorithm>
#include <set>

#include "ckpt/base/parse_number.h"
#include "ckpt/model/shape.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr std::string_view kExperts = ".deepspeed_experts.";  // before the expert's number

std::string FileOf(size_t mixture, size_t expert) {
  return fmt::format("layer_{}_expert_{}_mp_rank_00_model_states.pt", mixture, expert);
}

// How many experts each mixture has.
std::vector<size_t> ExpertsOf(const PyValue& root) {
  std::vector<size_t> counts;
  const PyValue* all = Find(root, "num_experts");
  for (size_t i = 0; const PyValue* count = ItemOf(all, i); ++i)
    counts.push_back(static_cast<size_t>(std::max<int64_t>(0, AsInt(count).value_or(0))));
  return counts;
}

// The number of the expert in a parameter's name.
std::optional<size_t> ExpertIn(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  name.remove_prefix(at + kExperts.size());
  const auto number = ParseNumber<size_t>(name.substr(0, name.find('.')), 0);
  return number && *number < kMaxExperts ? number : std::nullopt;
}

// What precedes an expert's number.
std::string PrefixOf(const std::string& name) { return name.substr(0, name.find(kExperts)); }

// The names of a mixture's tensors, before and after the experts' number.
struct Mixture {
  std::string prefix;
  std::set<std::string> rests;
};

Result<Mixture> ReadExpert(RankSlices& ranks, const std::string& name, size_t expert) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, ranks.builder.OpenFile(ranks.fs, ranks.directory(), name));
  Mixture found;
  if (!file.root().is(PyKind::kDict)) return ranks.Fail(name, Corrupt("it does not hold a state dict"));
  const std::string number = fmt::format("{}{}.", kExperts, expert);
  CAIRN_RETURN_IF_ERROR(
      ForEachTensor(file.root(), [&](const std::string& key, const TensorRef& tensor) -> Status {
        const size_t at = key.find(number);
        if (at == std::string::npos || (!found.rests.empty() && key.substr(0, at) != found.prefix))
          return ranks.Fail(name, Corrupt("{} is not a tensor of its expert {}", key, expert));
        found.prefix = key.substr(0, at);
        found.rests.insert(key.substr(at + number.size()));
        auto array = ranks.builder.ArrayIn(file, tensor, key);
        if (!array.ok()) return ranks.Fail(name, array.status());
        return ranks.Take(key, 0, Role::kWeight, *std::move(array), name);
      }));
  return found;
}

}  // namespace

bool IsOfExpert(const std::string& name) { return ExpertIn(name).has_value(); }

ExpertCounts ExpertsByMixture(const RankSlices& ranks) {
  std::vector<std::string> names;
  for (const RankSlice& slice : ranks.slices) names.push_back(slice.tensor.name);
  return ExpertsByMixture(names);
}

ExpertCounts ExpertsByMixture(const std::vector<std::string>& names) {
  ExpertCounts counts;
  for (const std::string& name : names)
    if (const auto expert = ExpertIn(name)) {
      size_t& count = counts[PrefixOf(name)];
      count = std::max(count, *expert + 1);
    }
  return counts;
}

Result<std::string> NameOverRanks(const std::string& name, const ExpertCounts& own, const ExpertCounts& all,
                                  size_t rank, size_t size) {
  const auto expert = ExpertIn(name);
  const std::string prefix = PrefixOf(name);
  const size_t count = expert ? own.at(prefix) : 0;
  if (count == 0 || !all.contains(prefix) || all.at(prefix) != count * size)
    return Corrupt(
        "{} is one of {} experts on each of {} expert parallel ranks, which are not those of the model", name,
        count, size);
  const size_t rest = name.find('.', prefix.size() + kExperts.size());
  return fmt::format("{}{}{}{}", prefix, kExperts, rank * count + *expert,
                     name.substr(std::min(rest, name.size())));
}

Status CheckExpertFiles(const DeepSpeedFiles& files, const PyValue& root) {
  if (const PyValue* automatic = Find(root, "ds_autoep_layers"); automatic && !automatic->is(PyKind::kNone))
    return NotSupported("{}: mixtures of DeepSpeed's AutoEP cannot be read yet", files.directory);
  const std::vector<size_t> counts = ExpertsOf(root);
  for (size_t mixture = 0; mixture < counts.size(); ++mixture) {
    const auto begin = files.experts.lower_bound({mixture, 0});
    const auto end = files.experts.lower_bound({mixture + 1, 0});
    const auto held = static_cast<size_t>(std::distance(begin, end));
    for (size_t expert = 0; expert < counts[mixture] && held < counts[mixture]; ++expert)
      if (!files.experts.contains({mixture, expert}))
        return NotFound("{}: this checkpoint holds {} of {} experts of mixture {}; {} is missing",
                        files.directory, held, counts[mixture], mixture, FileOf(mixture, expert));
  }
  for (const auto& [place, name] : files.experts)
    if (place.first >= counts.size() || place.second >= counts[place.first])
      return Corrupt("{}: {} is left over; the model states name no such expert", files.directory, name);
  return OkStatus();
}

Status ReadExperts(RankSlices& ranks) {
  CAIRN_RETURN_IF_ERROR(CheckExpertFiles(ranks.files, ranks.root()));
  if (ranks.files.experts.empty()) return OkStatus();
  if (!ranks.files.layers.empty() || ranks.models.size() > 1 || ranks.IsZero3() || ranks.layers.megatron)
    return NotSupported(
        "{}: a mixture of experts in a pipeline, over tensor parallel ranks, under ZeRO-3 or in Megatron's "
        "modules cannot be read yet",
        ranks.directory());
  std::map<size_t, Mixture> mixtures;
  std::set<std::string> prefixes;
  for (const auto& [place, name] : ranks.files.experts) {
    CAIRN_ASSIGN_OR_RETURN(const Mixture expert, ReadExpert(ranks, name, place.second));
    const auto [first, added] = mixtures.try_emplace(place.first, expert);
    if (added ? !prefixes.insert(expert.prefix).second : expert.prefix != first->second.prefix)
      return ranks.Fail(name, Corrupt("it holds an expert of {}, which is not its mixture", expert.prefix));
    if (expert.rests != first->second.rests)
      return ranks.Fail(name,
                        Corrupt("its expert has other tensors than expert 0 of mixture {}", place.first));
  }
  return OkStatus();
}

Result<std::vector<RankOptimizer>> ExpertOptimizers(RankSlices& ranks, std::vector<TorchFile>& opened) {
  const size_t size = ranks.files.expert_optimizers.size();
  for (const size_t count : ExpertsOf(ranks.root()))
    if (size == 0 || count % size != 0)
      return NotSupported(
          "{}: {} optimizers of expert parallel ranks do not share {} experts evenly, or one is missing",
          ranks.directory(), size, count);
  for (const auto& [rank, name] : ranks.files.expert_optimizers) {
    if (rank != opened.size())
      return NotFound("{}: the optimizer of expert parallel rank {} is missing", ranks.directory(),
                      opened.size());
    CAIRN_ASSIGN_OR_RETURN(TorchFile file, ranks.builder.OpenFile(ranks.fs, ranks.directory(), name));
    opened.push_back(std::move(file));
  }
  std::vector<RankOptimizer> found;
  const auto add = [&](const TorchFile& file, size_t rank) {
    const PyValue* optimizer = FindKind(file.root(), "optimizer", PyKind::kDict);
    if (optimizer) found.push_back({&file, optimizer, rank, size});
  };
  add(ranks.models[0], 0);
  for (size_t rank = 0; rank < opened.size(); ++rank) add(opened[rank], rank);
  return found;
}

size_t ExpertParallelSize(const PyValue& group, const RankOptimizer& own) {
  constexpr std::string_view kName = "ep_size_";
  std::string_view name = AsText(Find(group, "name")).value_or("");
  if (!name.starts_with(kName)) return own.size;
  name.remove_prefix(kName.size());
  return std::min(ParseNumber<size_t>(name, 1).value_or(own.size), own.size);
}

bool HasExpert(const std::string& name, const ExpertCounts& counts, size_t rank, size_t size) {
  const auto expert = ExpertIn(name);
  return expert && *expert * size / counts.at(PrefixOf(name)) == rank % size;
}

std::vector<const RankSlice*> TrainedBy(const RankSlices& ranks, size_t model_rank,
                                        const RankOptimizer& own) {
  const ExpertCounts counts = ExpertsByMixture(ranks);
  const PyValue* inner = Find(*own.optimizer, "optimizer_state_dict");
  const PyValue* groups = Find(inner ? *inner : *own.optimizer, "param_groups");
  std::set<size_t> sizes = {own.size};
  for (size_t g = 0; const PyValue* group = ItemOf(groups, g); ++g)
    sizes.insert(ExpertParallelSize(*group, own));
  const std::set<std::string> buffers = BufferNamesOf(ranks.models[model_rank].root());
  std::vector<const RankSlice*> weights;
  for (const RankSlice& slice : ranks.slices) {
    const std::string& name = slice.tensor.name;
    const auto expert = ExpertIn(name);
    if (slice.tp != static_cast<int>(model_rank) % ranks.layers.tp || !slice.is_weight() ||
        buffers.contains(name))
      continue;
    const auto has = [&](size_t size) { return HasExpert(name, counts, own.rank, size); };
    if (!expert || std::ranges::any_of(sizes, has)) weights.push_back(&slice);
  }
  return weights;
}

}  // namespace cairn
