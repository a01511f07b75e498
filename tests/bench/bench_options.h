// The options of every job of cairn-bench, and what it checks before it starts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/bench/bench_rounds.h"

namespace cairn {

inline constexpr uint64_t kBenchUnit = 64 << 10;  // sizes are whole multiples: pages, whatever their size

struct BenchOptions {
  uint64_t bytes = 1 << 30;
  std::string dir = ".";
  int rounds = 5;
  bool json = false;
};

// Errors: NoSpace if the directory's file system or the machine's memory has less than this, which says
// how much there is.
Status CheckRoom(const BenchOptions& options, uint64_t disk_bytes, uint64_t memory_bytes);

// CPU, cores, memory, kernel, file system of the directory, and whether it takes O_DIRECT and io_uring.
Result<nlohmann::ordered_json> MachineFacts(const std::string& directory);

// Shows on a terminal what is being measured.
std::function<void(const std::string&)> TellOnTerminal();

// One run's report, as tables or as JSON. `facts` go first.
void PrintReport(const BenchOptions& options, nlohmann::ordered_json facts, const Samples& samples,
                 const std::vector<GoalRatio>& goals);

}  // namespace cairn
