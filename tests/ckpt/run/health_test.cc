#include "ckpt/run/health.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cairn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Health Good(const std::string& session) { return {.loss = 2.5, .grad_norm = 0.5, .session = session}; }

// Saved at `step`, in the midst of bad iterations from `first` on.
Health Bad(const std::string& session, int64_t step, int64_t first, const std::string& accused) {
  return {.loss = std::nan(""),
          .grad_norm = std::nan(""),
          .bad_iterations = step - first + 1,
          .first_bad_iteration = first,
          .skipped_iterations = step - first + 1,
          .session = session,
          .accused = accused};
}

TEST(HealthTest, RoundTripsThroughJson) {
  for (const double value : {2.5, 0.0, -1e-7, 123456.789, 2e15, -3e30, kInfinity, -kInfinity}) {
    Health health = Bad("a", 12, 10, "b");
    health.loss = value;
    health.grad_norm = 1.5;
    health.nonfinite = 7;
    const nlohmann::json state = {{"iteration", 12}, {"health", ToJson(health)}};
    const nlohmann::json read = nlohmann::json::parse(state.dump());
    EXPECT_EQ(HealthOf(read), health) << state.dump();
  }
  const std::optional<Health> nan = HealthOf({{"health", ToJson(Bad("a", 12, 12, ""))}});
  ASSERT_TRUE(nan);
  EXPECT_TRUE(std::isnan(nan->loss));
  EXPECT_TRUE(std::isnan(nan->grad_norm));
  EXPECT_EQ(nan->first_bad_iteration, 12);
}

TEST(HealthTest, MissingOrMalformedRecordsCountAsHealthy) {
  nlohmann::json whole = ToJson(Good("a"));
  EXPECT_TRUE(HealthOf({{"health", whole}}));
  for (const char* key : {"loss", "grad_norm", "bad_iterations", "skipped_iterations", "nonfinite"}) {
    nlohmann::json without = whole, other = whole;
    without.erase(key);
    other[key] = nlohmann::json::array();
    EXPECT_FALSE(HealthOf({{"health", without}})) << key;
    EXPECT_FALSE(HealthOf({{"health", other}})) << key;
  }
  EXPECT_FALSE(HealthOf({{"iteration", 4}}));
  EXPECT_FALSE(HealthOf({{"health", "good"}}));
  Manifest manifest;
  EXPECT_TRUE(Healthy(manifest));
  manifest.state = {{"health", ToJson(Bad("a", 4, 4, ""))}};
  EXPECT_FALSE(Healthy(manifest));
}

TEST(HealthTest, GivesTheReason) {
  EXPECT_EQ(WhyUnhealthy(Good("a")), "");
  Health health = Good("a");
  health.skipped_iterations = 3;  // while the loss scale is searched
  health.grad_norm = kInfinity;
  EXPECT_EQ(WhyUnhealthy(health), "");
  health = Bad("a", 12, 12, "");
  EXPECT_EQ(WhyUnhealthy(health), "loss nan, iteration 12 is bad");
  health = Bad("a", 14, 12, "");
  health.loss = kInfinity;
  EXPECT_EQ(WhyUnhealthy(health), "loss inf, 3 bad iterations in a row from iteration 12");
  health.loss = 2;
  health.grad_norm = kInfinity;
  health.nonfinite = 2;
  EXPECT_EQ(WhyUnhealthy(health),
            "update skipped, gradient norm inf, 3 bad iterations in a row from iteration 12; 2 saved values "
            "are not "
            "finite");
  health = Good("a");
  health.nonfinite = 1;
  EXPECT_EQ(WhyUnhealthy(health), "1 saved value is not finite");
}

struct VerdictCase {
  const char* name;
  std::vector<JudgedStep> steps;
  std::vector<Condemnation> condemned;
  std::vector<int64_t> unhealthy;  // ascending
};

class VerdictTest : public testing::TestWithParam<VerdictCase> {};

TEST_P(VerdictTest, FindsUnhealthySteps) {
  const VerdictCase& c = GetParam();
  const std::vector<std::string> verdicts = Verdicts(c.steps, c.condemned);
  ASSERT_EQ(verdicts.size(), c.steps.size());
  std::vector<int64_t> unhealthy;
  for (size_t i = 0; i < verdicts.size(); ++i)
    if (!verdicts[i].empty()) unhealthy.push_back(c.steps[i].step);
  EXPECT_EQ(unhealthy, c.unhealthy);
}

Health Infinite(const std::string& session) {
  Health health = Good(session);
  health.nonfinite = 5;
  return health;
}

INSTANTIATE_TEST_SUITE_P(
    Table, VerdictTest,
    testing::Values(
        VerdictCase{"none", {}, {}, {}}, VerdictCase{"unknown", {{2, {}}, {4, {}}}, {}, {}},
        VerdictCase{"good", {{2, Good("a")}, {4, Good("a")}}, {}, {}},
        VerdictCase{"bad_by_its_own_record", {{2, Good("a")}, {4, Bad("a", 4, 4, "a")}}, {}, {4}},
        // Iteration 8 is the first bad one: step 7 holds the weights that made it.
        VerdictCase{"the_step_before_the_first_bad_iteration",
                    {{6, Good("a")}, {7, Good("a")}, {10, Bad("a", 10, 8, "a")}},
                    {},
                    {7, 10}},
        VerdictCase{"a_good_iteration_lies_between", {{6, Good("a")}, {10, Bad("a", 10, 8, "a")}}, {}, {10}},
        VerdictCase{"the_step_that_was_resumed_from", {{6, Good("a")}, {8, Bad("b", 8, 7, "a")}}, {}, {6, 8}},
        VerdictCase{"of_unknown_health_before_sessions_were_recorded",
                    {{6, {}}, {8, Bad("b", 8, 7, "")}},
                    {},
                    {6, 8}},
        // Session b diverged and left step 10; session c resumed from 6 and saved a step 7 of its own.
        VerdictCase{"another_session_saved_that_step_again",
                    {{6, Good("a")}, {7, Good("c")}, {10, Bad("b", 10, 8, "b")}},
                    {},
                    {10}},
        VerdictCase{"one_bad_batch_that_was_skipped",
                    {{6, Good("a")}, {7, Bad("a", 7, 7, "a")}, {8, Good("a")}},
                    {},
                    {}},
        VerdictCase{"not_acquitted_by_another_session",
                    {{6, Good("a")}, {7, Bad("a", 7, 7, "a")}, {8, Good("b")}},
                    {},
                    {6, 7}},
        VerdictCase{"values_that_are_not_finite", {{6, Infinite("a")}, {8, Good("a")}}, {}, {6}},
        VerdictCase{"condemned_on_disk", {{6, Good("a")}, {8, Good("a")}}, {{"", 8, "a", 20}}, {8}},
        VerdictCase{"another_step_was_condemned", {{6, Good("a")}, {8, Good("b")}}, {{"", 8, "a", 20}}, {}},
        VerdictCase{"a_step_of_another_run", {{8, {}, "copy"}}, {{"run", 8, "", 20}}, {}},
        VerdictCase{"an_older_step_condemned_on_disk", {{6, {}}, {8, {}}}, {{"", 8, "", 20}}, {8}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cairn
