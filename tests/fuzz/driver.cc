// Runs a fuzz target on its corpus and then on mutations of it, for a number of runs or seconds, without
// looking at coverage: for builds without libFuzzer, and for the same inputs in every build. Ends with one
// line of JSON.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/limits.h"
#include "tests/fuzz/mutator.h"

namespace cairn {
namespace {

struct DriverOptions {
  std::string name;
  uint64_t runs = 0;
  double seconds = 5;
  uint64_t seed = 1;
  std::string corpus, keep, write_seeds;
  std::vector<std::string> inputs;
};

std::string ReadWhole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::filesystem::path> FilesIn(const std::string& directory) {
  std::vector<std::filesystem::path> paths;
  if (!directory.empty() && std::filesystem::is_directory(directory))
    for (const auto& entry : std::filesystem::directory_iterator(directory)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

void RunOn(const std::string& input) {
  const InputAtWork at_work(input);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// Only the input's time counts, not the mutation's: reading clocks costs as much as a small input.
uint64_t RunMutations(const DriverOptions& options, std::vector<std::string> seeds) {
  Mutator mutator(options.seed, std::move(seeds), FuzzWords());
  const auto start = std::chrono::steady_clock::now();
  const auto more = [&](uint64_t runs) {
    if (options.runs > 0) return runs < options.runs;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < options.seconds;
  };
  uint64_t runs = 0;
  for (; more(runs); ++runs) RunOn(mutator.Next());
  return runs;
}

int Drive(const DriverOptions& options) {
  std::vector<std::string> seeds = FuzzSeeds();
  if (!options.write_seeds.empty()) {
    for (size_t i = 0; i < seeds.size(); ++i)
      std::ofstream(options.write_seeds + "/seed-" + std::to_string(i), std::ios::binary) << seeds[i];
    return 0;
  }
  WatchInputs(options.keep);
  for (const std::string& path : options.inputs) RunOn(ReadWhole(path));
  if (!options.inputs.empty()) return 0;
  for (const auto& path : FilesIn(options.corpus)) seeds.push_back(ReadWhole(path));
  for (const std::string& seed : seeds) RunOn(seed);
  const size_t corpus = seeds.size();
  const auto start = std::chrono::steady_clock::now();
  const uint64_t runs = corpus > 0 ? RunMutations(options, std::move(seeds)) : 0;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << nlohmann::ordered_json{{"target", options.name},
                                      {"seed", options.seed},
                                      {"corpus", corpus},
                                      {"executions", runs + corpus},
                                      {"seconds", seconds},
                                      {"slowest_seconds", PeaksOfInputs().seconds},
                                      {"largest_bytes", PeaksOfInputs().bytes}}
            << std::endl;
  return corpus > 0 ? 0 : 2;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  CLI::App app("runs a fuzz target on its corpus and on mutations of it; a finding ends the program");
  cairn::DriverOptions options;
  options.name = std::filesystem::path(argv[0]).filename();
  app.add_option("--runs", options.runs, "mutations to try");
  app.add_option("--seconds", options.seconds, "how long to try, without --runs")->capture_default_str();
  app.add_option("--seed", options.seed, "of the mutations")->capture_default_str();
  app.add_option("--corpus", options.corpus, "directory of inputs to run and to start from");
  app.add_option("--keep", options.keep, "file for the input that ends the program");
  app.add_option("--write-seeds", options.write_seeds,
                 "only write the seeds that the target makes into this directory");
  app.add_option("INPUT", options.inputs, "only run these files");
  CLI11_PARSE(app, argc, argv);
  return cairn::Drive(options);
}
