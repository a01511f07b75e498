// Fitting constants with wide priors.
#include "tools/plan/least_squares.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cairn {
namespace {

// Measured: 1 s of work and a delay, of `spread` about a prior of 1e-4 s.
Result<Fit> FitDelay(double delay, double spread) {
  return FitRobust({{std::log(1e-4), spread}}, {1, 1, 1},
                   [&](const std::vector<double>& x, std::vector<double>& residuals) {
                     for (double& r : residuals) r = std::log((1 + std::exp(x[0])) / (1 + delay)) / 0.03;
                   });
}

TEST(LeastSquaresTest, FindsAConstantFarFromItsPrior) {
  const auto fit = FitDelay(0.3, 3.3);
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(std::exp(fit->x[0]), 0.3, 0.05);
}

TEST(LeastSquaresTest, UnconstrainedConstantsStayAtTheirPrior) {
  const auto fit = FitDelay(1e-4, 4);
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->x[0], std::log(1e-4), 0.01);
  EXPECT_NEAR(std::sqrt(fit->variance[0]), 4, 0.02);
}

}  // namespace
}  // namespace cairn
