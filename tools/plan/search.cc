// Combinations enumerates every setup within the budget of GPUs. Searcher checks the rules first, which are
// cheap, then memory, then the conditions of the command line, which need the predicted time. A setup counts
// for the first rule that it breaks: these counts and the kept setups add up to all that were considered.
// Only the best are held in memory: the list is cut whenever it has grown to a few times its final size.

#include "tools/plan/search.h"

#include <fmt/ranges.h>
#include <muParser.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

constexpr int64_t kMostCombinations = 200'000'000;

std::vector<int64_t> UpTo(int64_t most) {
  std::vector<int64_t> all(std::max<int64_t>(0, most));
  std::iota(all.begin(), all.end(), 1);
  return all;
}

std::vector<int64_t> Or(const std::vector<int64_t>& given, std::vector<int64_t> otherwise) {
  return given.empty() ? std::move(otherwise) : given;
}

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= number; ++d)
    if (number % d == 0) divisors.push_back(d);
  return divisors;
}

std::vector<int64_t> PowersUpTo(int64_t most) {
  std::vector<int64_t> powers;
  for (int64_t p = 1; p <= most; p *= 2) powers.push_back(p);
  return powers;
}

Status CheckMixture(const PlanRequest& request) {
  const ModelShape& s = request.shape;
  if (s.experts == 0 && (!request.ep.empty() || !request.etp.empty()))
    return InvalidArgument("the model has no experts that --ep and --etp could divide");
  if (s.experts > 0 && s.experts_per_token < 1)
    return InvalidArgument("the experts that a token visits are needed (num_experts_per_tok)");
  if (s.experts_per_token > s.experts)
    return InvalidArgument("a token cannot visit {} of {} experts", s.experts_per_token, s.experts);
  if ((s.experts > 0 || s.key_value_rank > 0) && request.setup.program != Program::kMegatronLm)
    return InvalidArgument(
        "experts and latent attention are planned only as Megatron-LM cuts them; plan with --framework "
        "megatron-lm, without --for-cairn and --sbatch");
  return OkStatus();
}

Status CheckRequest(const PlanRequest& request) {
  const ModelShape& s = request.shape;
  if (s.layers < 1 || s.hidden < 1 || s.heads < 1 || s.vocab < 1 || s.seq < 1)
    return InvalidArgument(
        "layers, hidden size, heads, vocabulary and sequence length of the model are needed");
  if (s.heads > s.hidden)
    return InvalidArgument("{} heads are more than the hidden size {}", s.heads, s.hidden);
  CAIRN_RETURN_IF_ERROR(CheckMixture(request));
  if (request.setup.global_batch < 1) return InvalidArgument("the global batch size is needed");
  if (request.setup.precision == Precision::kBf16 && !request.cluster.has_bf16)
    return InvalidArgument("{} has no bf16; plan with --fp16", request.cluster.name);
  if (request.setup.precision == Precision::kFp8 && !request.cluster.has_fp8)
    return InvalidArgument("{} has no fp8; plan with --bf16", request.cluster.name);
  if (!request.rampup.empty()) {
    const auto& r = request.rampup;
    if (r.size() != 3 || r[0] < 1 || r[1] < 1 || r[2] < 0 || r[0] > request.setup.global_batch ||
        (request.setup.global_batch - r[0]) % r[1] != 0)
      return InvalidArgument("the ramp-up START INCREMENT SAMPLES does not lead to a global batch of {}",
                             request.setup.global_batch);
  }
  return OkStatus();
}

// Calls `visit` with each combination of the lists, GPUs within the budget.
class Combinations {
 public:
  explicit Combinations(const PlanRequest& request) : request_(request) {
    tp_ = Or(request.tp, PowersUpTo(2 * request.cluster.gpus_per_node));
    pp_ = Or(request.pp, UpTo(std::min(request.shape.layers + 2, request.MaxGpus())));
    micro_ = Or(request.micro_batches, PowersUpTo(16));
    zero_ = Or(request.zero, {0, 1, 2, 3});
    chunks_ = Or(request.virtual_stages, {1, 2, 4});
    ep_ = Or(request.ep, DivisorsOf(std::max<int64_t>(1, request.shape.experts)));
    recompute_ = request.recompute.empty()
                     ? std::vector{Recomputation::kFull, Recomputation::kSelective, Recomputation::kNone}
                     : request.recompute;
  }

  template <typename Visit>
  Status ForEach(const Visit& visit) const {
    int64_t seen = 0;
    const int64_t rest = micro_.size() * zero_.size() * chunks_.size() * recompute_.size();
    for (const int64_t tp : tp_)
      for (const int64_t pp : pp_) {
        if (tp * pp > request_.MaxGpus()) continue;
        for (const int64_t dp : Or(request_.dp, UpTo(request_.MaxGpus() / (tp * pp)))) {
          if (tp * pp * dp > request_.MaxGpus()) continue;
          const std::vector<ExpertCut> cuts = ExpertCuts(tp, dp);
          const int64_t inner = rest * static_cast<int64_t>(cuts.size());
          if ((seen += inner * (1 + Ends(pp, 1).size())) > kMostCombinations)
            return InvalidArgument("more than {} combinations; narrow them with --tp, --pp or --dp",
                                   kMostCombinations);
          RunSetup setup = request_.setup;
          setup.gpus = tp * pp * dp;
          setup.tp = tp;
          setup.pp = pp;
          setup.dp = dp;
          for (const auto& [ep, etp] : cuts) {
            setup.ep = ep;
            setup.etp = etp;
            Inner(setup, visit);
          }
        }
      }
    return OkStatus();
  }

 private:
  struct ExpertCut {
    int64_t ep, etp;
  };
  // Sizes that were not asked for are left out if they do not divide the ranks of a stage, TP·DP.
  std::vector<ExpertCut> ExpertCuts(int64_t tp, int64_t dp) const {
    if (request_.shape.experts == 0) return {{1, 1}};
    const bool asked = !request_.ep.empty() && !request_.etp.empty();
    std::vector<int64_t> etp_sizes = request_.etp;
    if (etp_sizes.empty()) etp_sizes = tp > 1 ? std::vector<int64_t>{1, tp} : std::vector<int64_t>{1};
    std::vector<ExpertCut> cuts;
    for (const int64_t ep : ep_)
      for (const int64_t etp : etp_sizes)
        if (asked || tp * dp % (ep * etp) == 0) cuts.push_back({ep, etp});
    return cuts;
  }

  template <typename Visit>
  void Inner(RunSetup setup, const Visit& visit) const {
    // Megatron-LM refuses a mixture with TP, but without sequence parallelism.
    setup.sequence_parallel = (setup.sequence_parallel || request_.shape.experts > 0) && setup.tp > 1;
    setup.on_cpu = request_.cluster.cpu;
    const int64_t pp = setup.pp;
    for (const int64_t chunks : chunks_) {
      const std::vector<StageEnds>& uneven = Ends(pp, chunks);
      for (const int64_t micro : micro_)
        for (const int64_t zero : zero_)
          for (const Recomputation recompute : recompute_) {
            setup.virtual_stages = chunks;
            setup.micro_batch = micro;
            setup.zero = zero;
            setup.recompute = recompute;
            VisitEnds(setup, uneven, visit);
          }
    }
  }

  // Even stages, then those with fewer layers at their ends.
  template <typename Visit>
  static void VisitEnds(RunSetup setup, const std::vector<StageEnds>& uneven, const Visit& visit) {
    visit(setup);
    for (const StageEnds& ends : uneven) {
      setup.first_layers = ends.first;
      setup.last_layers = ends.last;
      visit(setup);
    }
  }

  const std::vector<StageEnds>& Ends(int64_t pp, int64_t chunks) const {
    const auto [at, fresh] = ends_.try_emplace({pp, chunks});
    if (fresh && !request_.even_stages) {
      RunSetup setup{.pp = pp, .virtual_stages = chunks, .program = request_.setup.program};
      at->second = UnevenEnds(request_.shape, setup);
      if (request_.embeddings_as_layers)
        std::erase_if(at->second, [&](const StageEnds& ends) { return !OneLess(ends, pp); });
    }
    return at->second;
  }

  // True if each end holds one layer less than the stages between.
  bool OneLess(const StageEnds& ends, int64_t pp) const {
    return ends.first == ends.last && (ends.first + 1) * pp == request_.shape.layers + 2;
  }

  const PlanRequest& request_;
  std::vector<int64_t> tp_, pp_, micro_, zero_, chunks_, ep_;
  std::vector<Recomputation> recompute_;
  mutable std::map<std::pair<int64_t, int64_t>, std::vector<StageEnds>> ends_;  // by stages and chunks
};

bool Better(const Candidate& a, const Candidate& b) {
  return std::tuple(a.seconds, a.setup.gpus, a.memory_gb) < std::tuple(b.seconds, b.setup.gpus, b.memory_gb);
}

// The variables of conditions, with the values of the candidate.
using Variables = std::map<std::string, double>;

Variables VariablesOf(const PlanRequest& request, const Candidate& candidate, const IterationTime& time) {
  const RunSetup& s = candidate.setup;
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const ModelShape& m = request.shape;
  const StageLayers stages = PlannedStages(m, s);
  return {{"gpus", real(s.gpus)},
          {"nodes", real(s.gpus) / request.cluster.gpus_per_node},
          {"tp", real(s.tp)},
          {"pp", real(s.pp)},
          {"dp", real(s.dp)},
          {"ep", real(s.ep)},
          {"etp", real(s.etp)},
          {"v", real(s.virtual_stages)},
          {"first_layers", stages.first},
          {"last_layers", stages.last},
          {"mbs", real(s.micro_batch)},
          {"gbs", real(s.global_batch)},
          {"gas", real(s.MicroBatches())},
          {"zero", real(s.zero)},
          {"layers", real(m.layers)},
          {"hidden", real(m.hidden)},
          {"heads", real(m.heads)},
          {"seq", real(m.seq)},
          {"mem_gb", candidate.memory_gb},
          {"sec_per_it", candidate.seconds},
          {"bubble", time.bubble / time.Total()}};
}

// Conditions as users write them, in C's operators; % is the remainder.
class Conditions {
 public:
  explicit Conditions(Variables variables) : variables_(std::move(variables)) {}
  Conditions(const Conditions&) = delete;
  Conditions& operator=(const Conditions&) = delete;

  // Errors: InvalidArgument naming the expression, what is wrong with it, and the variables.
  Status Add(const std::string& expression) {
    mu::Parser& parser = parsers_.emplace_back();
    try {
      parser.DefineOprt(
          "%", [](double a, double b) { return std::fmod(a, b); }, mu::prMUL_DIV, mu::oaLEFT);
      for (auto& [name, value] : variables_) parser.DefineVar(name, &value);
      parser.SetExpr(expression);
      parser.Eval();
    } catch (const mu::Parser::exception_type& error) {
      std::vector<std::string> known;
      for (const auto& [name, value] : variables_) known.push_back(name);
      return InvalidArgument("'{}': {}; variables are {}", expression, error.GetMsg(),
                             fmt::join(known, ", "));
    }
    return OkStatus();
  }

  bool empty() const { return parsers_.empty(); }

  // The first condition that is not met; nullopt if all are.
  std::optional<size_t> FirstUnmet(const Variables& values) {
    for (auto& [name, value] : variables_) value = values.at(name);
    for (size_t i = 0; i < parsers_.size(); ++i)
      if (parsers_[i].Eval() == 0) return i;
    return std::nullopt;
  }

 private:
  Variables variables_;  // the parsers point into it
  std::deque<mu::Parser> parsers_;
};

class Searcher {
 public:
  Searcher(const PlanRequest& request, const Calibration& calibration, size_t top)
      : request_(request),
        calibration_(calibration),
        top_(std::max<size_t>(1, top)),
        limit_gb_(request.memory_share * request.cluster.memory_gb),
        conditions_(VariablesOf(request, Candidate{RunSetup()}, IterationTime{.steady = 1})) {}

  Result<SearchResult> Run() {
    result_.rules = RulesOf(request_);
    topology_rules_ = result_.rules.size();
    result_.rules.push_back({fmt::format("memory <= {:.1f} GB", limit_gb_), "it might run out of memory"});
    for (const std::string& expression : request_.require) {
      CAIRN_RETURN_IF_ERROR(conditions_.Add(expression));
      result_.rules.push_back({expression, "required on the command line"});
    }
    CAIRN_RETURN_IF_ERROR(Combinations(request_).ForEach([this](const RunSetup& setup) { Visit(setup); }));
    std::sort(result_.best.begin(), result_.best.end(), Better);
    if (result_.best.size() > top_) result_.best.resize(top_);
    return std::move(result_);
  }

 private:
  void Visit(const RunSetup& setup) {
    ++result_.considered;
    for (size_t i = 0; i < topology_rules_; ++i)
      if (!result_.rules[i].keeps(setup)) return RuleOut(i);
    Candidate candidate{setup};
    candidate.memory_gb = MemoryOf(request_.shape, setup, calibration_.memory.constants).Peak();
    if (candidate.memory_gb > limit_gb_) return RuleOut(topology_rules_);
    const IterationTime time = TimeOf(request_.shape, setup, request_.cluster, calibration_.time.constants);
    candidate.seconds = time.Total();
    if (!conditions_.empty())
      if (const auto unmet = conditions_.FirstUnmet(VariablesOf(request_, candidate, time)))
        return RuleOut(topology_rules_ + 1 + *unmet);
    ++result_.kept;
    Keep(candidate);
  }

  void RuleOut(size_t rule) { ++result_.rules[rule].ruled_out; }

  // Bounded: sorted and cut now and then.
  void Keep(const Candidate& candidate) {
    result_.best.push_back(candidate);
    if (result_.best.size() < 4 * top_ + 1000) return;
    std::nth_element(result_.best.begin(), result_.best.begin() + top_, result_.best.end(), Better);
    result_.best.resize(top_);
  }

  const PlanRequest& request_;
  const Calibration& calibration_;
  const size_t top_;
  const double limit_gb_;
  Conditions conditions_;
  SearchResult result_;
  size_t topology_rules_ = 0;  // the first of result_.rules
};

}  // namespace

Result<SearchResult> Search(const PlanRequest& request, const Calibration& calibration, size_t top) {
  CAIRN_RETURN_IF_ERROR(CheckRequest(request));
  return Searcher(request, calibration, top).Run();
}

}  // namespace cairn
