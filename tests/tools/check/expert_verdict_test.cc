#include "tools/check/expert_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/made_source.h"
#include "tools/check/value_check.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kInitial = 0.02, kTrained = 0.08;  // standard deviations
constexpr uint64_t kExperts = 8, kHidden = 32, kFfn = 48;

// A model of three mixtures. Its values are normally distributed, but for the moments' square.
struct Toy {
  std::function<double(int layer, uint64_t expert)> deviation = [](int, uint64_t) { return kTrained; };
  std::function<uint64_t(int layer, uint64_t expert)> copy_of = [](int, uint64_t expert) { return expert; };
  std::function<double(int layer, uint64_t expert)> moment = {};  // null: no optimizer
  double attention = kTrained, router = kTrained;
  bool doubled_router = false;
  bool frozen = false;  // the optimizer has a state of the attention only
  nlohmann::json state = nlohmann::json::object();

  std::vector<TensorEntry> Tensors() const {
    std::vector<TensorEntry> tensors;
    const auto add = [&](int layer, const char* name, Dims shape, bool of_experts) {
      const ParameterSpec spec{.name = fmt::format("layers.{}.{}", layer, name),
                               .shape = shape,
                               .layer = layer,
                               .of_experts = of_experts};
      tensors.push_back({spec, Role::kWeight, Dtype::kF32});
      if (of_experts ? moment != nullptr : frozen) tensors.push_back({spec, Role::kExpAvgSq, Dtype::kF32});
    };
    for (int layer = 0; layer < 3; ++layer) {
      add(layer, "attention.query.weight", {kHidden, kHidden}, false);
      add(layer, "mlp.router.weight", {kExperts, kHidden}, false);
      add(layer, "mlp.experts.up.weight", {kExperts, kFfn, kHidden}, true);
      add(layer, "mlp.experts.down.weight", {kExperts, kHidden, kFfn}, true);
    }
    return tensors;
  }

  // Makes the values of one expert, or of another whole matrix.
  void Fill(const TensorEntry& tensor, uint64_t expert, std::span<float> values) const {
    const int layer = tensor.spec.layer;
    const bool of_experts = tensor.spec.of_experts;
    if (tensor.role == Role::kExpAvgSq) {
      std::ranges::fill(values, static_cast<float>(of_experts ? moment(layer, expert) : 1e-6));
      return;
    }
    const uint64_t own = of_experts ? copy_of(layer, expert) : 0;
    std::mt19937_64 rng(Hash64(fmt::format("{} {}", tensor.spec.name, own)));
    const bool routes = tensor.spec.name.ends_with("router.weight");
    std::normal_distribution<double> draw(0, of_experts ? deviation(layer, own)
                                             : routes   ? router
                                                        : attention);
    for (float& value : values) value = static_cast<float>(draw(rng));
    if (routes && doubled_router)
      std::ranges::copy(values.first(values.size() / 2), values.subspan(values.size() / 2).begin());
  }

  ValueReport Check() const {
    StepInfo info;
    info.model.num_experts = kExperts;
    info.model.num_experts_per_token = 2;
    info.model.num_layers = 3;
    info.state = state;
    MadeSource source(
        info, Tensors(), [&](const TensorEntry& tensor, uint64_t begin, std::span<std::byte> out) {
          std::vector<float> whole(tensor.spec.shape.Volume());
          const uint64_t count = tensor.spec.of_experts ? kExperts : 1, own = whole.size() / count;
          for (uint64_t i = 0; i < count; ++i) Fill(tensor, i, std::span(whole).subspan(i * own, own));
          std::memcpy(out.data(), whole.data() + begin, out.size());
        });
    return CheckValues(source, TakeCensus(source.catalog().tensors, source.manifest().model),
                       kDefaultMaxMemory);
  }

  // What the problems say.
  std::vector<std::string> Lost() const {
    std::vector<std::string> lost;
    for (const Problem& problem : Check().experts) lost.push_back(problem.what);
    return lost;
  }
  std::vector<std::string> Notes() const { return Check().notes; }
};

TEST(ExpertVerdictTest, ATrainedModelIsGood) {
  for (const bool optimizer : {false, true}) {
    Toy toy;
    if (optimizer) toy.moment = [](int, uint64_t) { return 1e-6; };
    const ValueReport report = toy.Check();
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_THAT(report.experts, IsEmpty());
    EXPECT_THAT(report.notes, IsEmpty());
  }
}

TEST(ExpertVerdictTest, AModelThatIsNotTrainedIsGood) {
  Toy toy{.deviation = [](int, uint64_t) { return kInitial; }, .attention = kInitial, .router = kInitial};
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), IsEmpty());
  toy.moment = [](int, uint64_t) { return 0.0; };  // before the first update
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), IsEmpty());
}

TEST(ExpertVerdictTest, CopiesOfAWholeRankInEachLayerAreLostAfterATraining) {
  Toy toy{.copy_of = [](int, uint64_t expert) { return expert % 4; }};
  const auto lost =
      ElementsAre(AllOf(HasSubstr("layers.1.mlp.experts.down.weight"),
                        HasSubstr("experts 0 = 4, 1 = 5, 2 = 6, 3 = 7 are equal bit for bit: those "
                                  "of one rank")));
  EXPECT_THAT(toy.Lost(), lost);
  EXPECT_THAT(toy.Check().problems, IsEmpty());  // they are in no record of the step
  toy.router = kInitial;
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("the model was made of copies")));
  toy.state["iteration"] = 100;
  EXPECT_THAT(toy.Lost(), lost);
  toy.state["iteration"] = 0;  // of a step that was made of a model, too
  EXPECT_THAT(toy.Lost(), IsEmpty());
  toy.moment = [](int, uint64_t) { return 1e-6; };
  EXPECT_THAT(toy.Lost(), lost);
  toy.copy_of = [](int, uint64_t expert) { return expert == 6 || expert == 7 ? expert - 4 : expert; };
  EXPECT_THAT(toy.Lost(), ElementsAre(HasSubstr("experts 2 = 6, 3 = 7 are equal")));
}

TEST(ExpertVerdictTest, OtherCopiesAreANote) {
  const std::pair<const char*, std::function<uint64_t(int, uint64_t)>> copies[] = {
      {"upcycled", [](int, uint64_t) { return 0; }},
      {"merged", [](int, uint64_t expert) { return expert == 3 ? 2 : expert; }},
      {"merged in pairs", [](int, uint64_t expert) { return expert / 2; }},
      {"one rank, but not whole", [](int, uint64_t expert) { return expert == 5 ? 1 : expert; }},
      {"another layer", [](int layer, uint64_t expert) { return layer == 1 ? expert % 4 : expert; }}};
  for (const auto& [name, copy_of] : copies) {
    SCOPED_TRACE(name);
    const Toy toy{.copy_of = copy_of, .moment = [](int, uint64_t) { return 1e-6; }};
    EXPECT_THAT(toy.Lost(), IsEmpty());
    EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("are equal bit for bit: the model was made of copies")));
  }
}

TEST(ExpertVerdictTest, AMixtureThatWasDoubledWithItsRouterIsANote) {
  const Toy toy{.copy_of = [](int, uint64_t expert) { return expert % 4; }, .doubled_router = true};
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("the model was made of copies")));
}

// As a converter leaves them, or who freezes them: the values are the same.
TEST(ExpertVerdictTest, InitialExpertsOfWholeLayersAreANote) {
  Toy toy{.deviation = [](int layer, uint64_t) { return layer == 2 ? kInitial : kTrained; }};
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), ElementsAre(AllOf(HasSubstr("layers.2.mlp: experts 0 to 7 have the values"),
                                             HasSubstr("deviation 0.02"), HasSubstr("frozen, new"))));
  toy.deviation = [](int, uint64_t) { return kInitial; };
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(),
              ElementsAre(HasSubstr("layers.0.mlp, layers.1.mlp, layers.2.mlp: experts 0 to 7")));
  toy.deviation = [](int, uint64_t) { return kInitial / std::sqrt(6); };  // as Megatron's output layers
  EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("experts 0 to 7")));
  toy.frozen = true;
  EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("frozen, the optimizer has no state of them")));
}

TEST(ExpertVerdictTest, TheExpertsOfARankAreLostInAllLayersUnlessTheOptimizerExplainsThem) {
  Toy toy{.deviation = [](int, uint64_t expert) { return expert / 2 == 1 ? kInitial : kTrained; }};
  EXPECT_THAT(toy.Lost(), ElementsAre(HasSubstr("experts 2 to 3 have the values")));
  toy.frozen = true;
  EXPECT_THAT(toy.Lost(), IsEmpty());
  toy.moment = [](int, uint64_t expert) { return expert / 2 == 1 ? 0 : 1e-6; };
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("their gradients are masked: their moments are zero")));
  toy.moment = [](int, uint64_t) { return 1e-6; };
  EXPECT_THAT(toy.Lost(), ElementsAre(HasSubstr("experts 2 to 3 have the values")));
}

TEST(ExpertVerdictTest, AnExpertWithoutTokensIsANote) {
  Toy toy{.deviation = [](int layer, uint64_t expert) {
    return expert == 5 && layer == 1 ? kInitial : kTrained;
  }};
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(),
              ElementsAre(HasSubstr("layers.1.mlp: expert 5 has the values of an initialization")));
  toy.moment = [](int layer, uint64_t expert) { return expert == 5 && layer == 1 ? 0.0 : 1e-6; };
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("no token was routed there yet")));
  toy.moment = [](int, uint64_t) { return 1e-6; };  // which says that it was trained as the others
  EXPECT_THAT(toy.Lost(), ElementsAre(HasSubstr("layers.1.mlp: expert 5 has the values")));
}

// In matrices of 1536 elements 1.7 of its deviation are enough.
TEST(ExpertVerdictTest, AnInitialExpertIsSeenIfOthersMovedLittle) {
  const Toy toy{.deviation = [](int, uint64_t expert) { return expert == 5 ? kInitial : 1.7 * kInitial; },
                .attention = kInitial,
                .router = kInitial};
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("expert 5 has the values of an initialization")));
}

TEST(ExpertVerdictTest, MomentsOfZeroAreANote) {
  const Toy toy{.moment = [](int, uint64_t expert) { return expert == 0 ? 1e-6 : 0.0; }};
  EXPECT_THAT(toy.Lost(), IsEmpty());
  EXPECT_THAT(toy.Notes(), ElementsAre(HasSubstr("the exp_avg_sq of experts 1 to 7 is zero")));
}

}  // namespace
}  // namespace cairn
