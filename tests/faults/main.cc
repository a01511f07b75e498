// faults: checks cairn's promises for checkpoints when the machine fails. One line of JSON per goal.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/faults/goal.h"

namespace cairn {
namespace {

struct Goal {
  const char* name;
  void (*run)(const GoalOptions&, Tally&);
};
constexpr Goal kGoals[] = {
    {"kill_points", RunKillPoints}, {"power_loss", RunPowerLoss}, {"errors", RunErrors},
    {"damage", RunDamage},          {"readers", RunReaders},      {"mutants", RunMutants},
    {"node_steps", RunNodeSteps},
};

bool Run(const Goal& goal, const GoalOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Tally tally;
  goal.run(options, tally);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const nlohmann::ordered_json line = {
      {"goal", goal.name},
      {"tried", tally.tried()},
      {"passed", tally.passed()},
      {"failing_seed", tally.failing_seed() ? nlohmann::json(*tally.failing_seed()) : nlohmann::json()},
      {"seconds", std::round(seconds * 10) / 10}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  for (const std::string& complaint : tally.complaints()) std::fprintf(stderr, "%s\n", complaint.c_str());
  return tally.tried() > 0 && tally.passed() == tally.tried();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  CLI::App app("crashes, faults and damage, and what must be left after them; exit status 1 if a goal fails");
  cairn::GoalOptions options;
  std::vector<std::string> names;
  for (const cairn::Goal& goal : cairn::kGoals) names.emplace_back(goal.name);
  std::vector<std::string> wanted = names;
  app.add_option("--goal", wanted, "only these")->check(CLI::IsMember(names));
  app.add_option("--seed", options.seed, "only this state of the goal, with its complaint");
  app.add_option("--jobs", options.jobs, "threads")->check(CLI::Range(1, 1024))->capture_default_str();
  using Form = cairn::GoalOptions::Form;
  auto* quick = app.add_flag_callback(
      "--quick", [&] { options.form = Form::kQuick; },
      "fewer power losses and saves, one bit of each byte, each operation once");
  app.add_flag_callback(
         "--long", [&] { options.form = Form::kLong; }, "many more states")
      ->excludes(quick);
  CLI11_PARSE(app, argc, argv);
  bool good = true;
  for (const cairn::Goal& goal : cairn::kGoals)
    if (std::ranges::find(wanted, goal.name) != wanted.end()) good &= cairn::Run(goal, options);
  return good ? 0 : 1;
}
