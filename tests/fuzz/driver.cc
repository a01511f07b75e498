// Runs a fuzz target on mutated seeds, for a number of runs or seconds. The input at work lies in a file
// meanwhile if --keep names one, so that a crash leaves it.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz_target.h"

namespace cairn {
namespace {

constexpr size_t kMaxInput = 1 << 16;
constexpr unsigned kSecondsAnInput = 30;

class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<std::string> seeds)
      : random_(seed), seeds_(std::move(seeds)), words_(FuzzWords()) {}

  std::string Next() {
    std::string input = seeds_[Below(seeds_.size())];
    for (size_t k = Below(8) + 1; k > 0; --k) Mutate(input);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    return input;
  }

 private:
  size_t Below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  char Byte() { return static_cast<char>(random_()); }

  void Mutate(std::string& input) {
    const size_t at = Below(input.size() + 1),
                 length = Below(std::min<size_t>(input.size() - std::min(at, input.size()), 64) + 1);
    switch (Below(10)) {
      case 0:
        input.erase(at, length);
        break;
      case 1:
        input.insert(at, input.substr(Below(input.size() + 1), Below(128)));
        break;
      case 2:
        input.insert(at, std::string(Below(64), Byte()));
        break;
      case 3:
        if (at < input.size()) input[at] = Byte();
        break;
      case 4:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << Below(8)));
        break;
      case 5:
        if (!words_.empty()) input.insert(at, words_[Below(words_.size())]);
        break;
      case 6:
        if (!words_.empty()) input.replace(at, length, words_[Below(words_.size())]);
        break;
      case 7:
        Number(input, at);
        break;
      case 8:
        Splice(input, at);
        break;
      default:
        input.resize(at);
    }
  }

  // A number, or the bytes of one, becomes one at an edge.
  void Number(std::string& input, size_t at) {
    static constexpr uint64_t kEdges[] = {
        0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~uint64_t{0}};
    const uint64_t edge = kEdges[Below(std::size(kEdges))];
    if (at < input.size() && input[at] >= '0' && input[at] <= '9') {
      size_t end = at;
      while (end < input.size() && input[end] >= '0' && input[end] <= '9') ++end;
      input.replace(at, end - at, std::to_string(edge));
      return;
    }
    const size_t width = size_t{1} << Below(4);
    for (size_t i = 0; i < width && at + i < input.size(); ++i)
      input[at + i] = static_cast<char>(edge >> (8 * i));
  }

  void Splice(std::string& input, size_t at) {
    const std::string& other = seeds_[Below(seeds_.size())];
    input = input.substr(0, at) + other.substr(Below(other.size() + 1));
  }

  std::mt19937_64 random_;
  std::vector<std::string> seeds_;
  std::vector<std::string> words_;
};

struct DriverOptions {
  uint64_t runs = 0;
  double seconds = 0;
  uint64_t seed = 1;
  std::string keep, write_seeds;
  std::vector<std::string> inputs;
};

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteWhole(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

const std::string* g_input = nullptr;  // at work
std::string g_keep;

// Signals of a crash, and an alarm for an input that does not end.
void KeepInput(int signal) {
  const int file = open(g_keep.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file >= 0 && g_input && write(file, g_input->data(), g_input->size()) >= 0) close(file);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void WatchForCrashes(const std::string& keep) {
  g_keep = keep;
  for (const int signal : {SIGILL, SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGALRM})
    std::signal(signal, KeepInput);
}

void RunOn(const std::string& input) {
  g_input = &input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

int Drive(const DriverOptions& options) {
  const std::vector<std::string> seeds = FuzzSeeds();
  for (size_t i = 0; i < seeds.size() && !options.write_seeds.empty(); ++i)
    WriteWhole(options.write_seeds + "/seed-" + std::to_string(i), seeds[i]);
  for (const std::string& path : options.inputs) RunOn(ReadWhole(path));
  if (!options.inputs.empty() || !options.write_seeds.empty()) return 0;
  for (const std::string& seed : seeds) RunOn(seed);
  if (!options.keep.empty()) WatchForCrashes(options.keep);
  Mutator mutator(options.seed, seeds);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  uint64_t runs = 0;
  double slowest = 0;
  while ((options.runs > 0 && runs < options.runs) || (options.runs == 0 && elapsed() < options.seconds)) {
    const std::string input = mutator.Next();
    alarm(kSecondsAnInput);
    const double before = elapsed();
    RunOn(input);
    slowest = std::max(slowest, elapsed() - before);
    ++runs;
  }
  std::printf("%llu inputs, %.1f s, the slowest %.3f s\n", static_cast<unsigned long long>(runs), elapsed(),
              slowest);
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  CLI::App app("mutates the seeds of a fuzz target; a finding ends the program");
  cairn::DriverOptions options;
  options.seconds = 5;
  app.add_option("--runs", options.runs, "inputs to try");
  app.add_option("--seconds", options.seconds, "how long to try, without --runs")->capture_default_str();
  app.add_option("--seed", options.seed, "of the mutations")->capture_default_str();
  app.add_option("--keep", options.keep, "file for the input that ends the program");
  app.add_option("--write-seeds", options.write_seeds,
                 "only write the seeds into this directory, for libFuzzer");
  app.add_option("INPUT", options.inputs, "only run these files");
  CLI11_PARSE(app, argc, argv);
  return cairn::Drive(options);
}
