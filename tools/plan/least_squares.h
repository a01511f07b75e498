// Robust fitting of a few positive constants to many measurements, with a prior for each.
//
// Minimises, over x = log(constants), the sum of pseudo-Huber losses of the residuals plus ((x - mean) /
// spread)² by Levenberg-Marquardt (Eigen's port of MINPACK). A measurement that contradicts the rest pulls
// with bounded force; a constant that the measurements do not determine keeps its prior. If the prior does
// not even determine the order of magnitude, the search also starts far to either side.
#pragma once

#include <functional>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

struct Prior {
  double mean = 0;    // of the logarithm
  double spread = 1;  // its standard deviation
};

struct Fit {
  std::vector<double> x;
  std::vector<double> variance;  // of each x, given the data and the priors
  // The uncertainty of x: one standard deviation along each principal axis of its covariance, which moves
  // the constants together that the data cannot tell apart.
  std::vector<std::vector<double>> axes;
};

// Fills `residuals`, one for each weight, with (predicted - measured) / noise at x.
using Residuals = std::function<void(const std::vector<double>& x, std::vector<double>& residuals)>;

// `weights` counts each residual. Errors: InvalidArgument if the solver finds no finite result.
Result<Fit> FitRobust(const std::vector<Prior>& priors, const std::vector<double>& weights,
                      const Residuals& residuals);

}  // namespace cairn
