// Robust fitting of a few positive constants to many measurements, with what was believed of them before.
//
// Minimises, over x = log(constants), the sum of pseudo-Huber losses of the residuals plus ((x - mean) /
// spread)² by Levenberg-Marquardt (Eigen's port of MINPACK). A measurement that contradicts the rest pulls
// with bounded force; a constant that the measurements say nothing of stays at its prior. Where not even the
// order of magnitude is believed, the search also starts far to either side.
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
  // What x may be besides: one standard deviation along each principal axis of its covariance, which moves
  // the constants together that the data cannot tell apart.
  std::vector<std::vector<double>> axes;
};

// `residuals` fills a vector of the size `count` with (predicted - measured) / noise at x; `weights` counts
// each. Errors: InvalidArgument where the solver does not get a finite result.
Result<Fit> FitRobust(
    const std::vector<Prior>& priors, const std::vector<double>& weights,
    const std::function<void(const std::vector<double>& x, std::vector<double>& residuals)>& residuals);

}  // namespace cairn
