#include "tools/plan/least_squares.h"

#include <Eigen/Dense>
#include <cmath>
#include <unsupported/Eigen/NonLinearOptimization>
#include <unsupported/Eigen/NumericalDiff>

namespace cairn {
namespace {

// The root of the pseudo-Huber loss, with the sign of r: r near 0, ±sqrt(2|r|) far out.
double Soften(double r) { return std::copysign(std::sqrt(2 * (std::sqrt(1 + r * r) - 1)), r); }

// Softened residuals, then the distances from the priors.
struct Problem {
  using Scalar = double;
  using InputType = Eigen::VectorXd;
  using ValueType = Eigen::VectorXd;
  using JacobianType = Eigen::MatrixXd;
  enum { InputsAtCompileTime = Eigen::Dynamic, ValuesAtCompileTime = Eigen::Dynamic };

  const std::vector<Prior>* priors;
  const std::vector<double>* weights;
  const Residuals* residuals;

  int inputs() const { return static_cast<int>(priors->size()); }
  int values() const { return static_cast<int>(weights->size() + priors->size()); }

  int operator()(const Eigen::VectorXd& x, Eigen::VectorXd& out) const {
    std::vector<double> r(weights->size());
    (*residuals)(std::vector<double>(x.data(), x.data() + x.size()), r);
    for (size_t i = 0; i < r.size(); ++i) out[i] = std::sqrt((*weights)[i]) * Soften(r[i]);
    for (size_t i = 0; i < priors->size(); ++i)
      out[r.size() + i] = (x[i] - (*priors)[i].mean) / (*priors)[i].spread;
    return 0;
  }
};

// A constant with a wider prior than this may start so far off that the rows do not depend on it (a delay of
// microseconds that really takes milliseconds), and no slope leads to the right value.
constexpr double kSurelyNear = 1;

using Slopes = Eigen::NumericalDiff<Problem, Eigen::Central>;

// Moves x to the nearest minimum; returns the cost there.
double Minimize(Slopes& problem, Eigen::VectorXd& x) {
  Eigen::LevenbergMarquardt<Slopes> solver(problem);
  solver.parameters.maxfev = 2000;
  solver.parameters.ftol = solver.parameters.xtol = 1e-8;
  solver.minimize(x);
  return std::isfinite(solver.fnorm) ? solver.fnorm : INFINITY;
}

}  // namespace

Result<Fit> FitRobust(const std::vector<Prior>& priors, const std::vector<double>& weights,
                      const Residuals& residuals) {
  // Products jump with the number of tiles, never with a constant; central differences are exact enough.
  Slopes problem(Problem{&priors, &weights, &residuals});
  Eigen::VectorXd x(priors.size());
  for (size_t i = 0; i < priors.size(); ++i) x[i] = priors[i].mean;
  double cost = Minimize(problem, x);
  for (size_t i = 0; i < priors.size(); ++i) {
    if (priors[i].spread <= kSurelyNear) continue;
    for (const double side : {-1.5, 1.5}) {
      Eigen::VectorXd from = x;
      from[i] = priors[i].mean + side * priors[i].spread;
      const double reached = Minimize(problem, from);
      if (reached < cost) cost = reached, x = from;
    }
  }
  if (!x.allFinite())
    return InvalidArgument("the constants cannot be fitted: the solver left the finite numbers");

  Eigen::MatrixXd jacobian(problem.values(), problem.inputs());
  problem.df(x, jacobian);
  const Eigen::MatrixXd covariance =
      (jacobian.transpose() * jacobian).ldlt().solve(Eigen::MatrixXd::Identity(x.size(), x.size()));
  Fit fit;
  fit.x.assign(x.data(), x.data() + x.size());
  for (int i = 0; i < x.size(); ++i) fit.variance.push_back(covariance(i, i));
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> axes(covariance);
  for (int i = 0; i < x.size(); ++i) {
    const Eigen::VectorXd axis = std::sqrt(std::max(0.0, axes.eigenvalues()[i])) * axes.eigenvectors().col(i);
    fit.axes.emplace_back(axis.begin(), axis.end());
  }
  return fit;
}

}  // namespace cairn
