// Reports the progress of a long verb: bytes (or batches, for example) done of all, rate, and the time left.
//
// On a terminal one line on stderr that is rewritten, elsewhere a plain line every ten seconds, so that
// the log of a batch job stays short. Prints nothing in the first second: most work is done by then.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

class Progress {
 public:
  // Suppresses all progress (--quiet, --no-progress).
  static void TurnOff();
  static bool IsOff();
  // `what` is a participle: "reshaping". `enabled` false (--quiet, --json): prints nothing at all. `unit`: of
  // what is counted, in the plural; empty: bytes.
  Progress(std::string what, uint64_t total, bool enabled = true, std::string unit = "");
  ~Progress();  // ends the terminal's line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total so far. Cheap; from one thread.
  void Update(uint64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  void Print(uint64_t done, double seconds);
  std::string InUnits(double count) const;

  const std::string what_;
  const uint64_t total_;
  const bool enabled_;
  const std::string unit_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point next_;
  bool printed_ = false;
};

}  // namespace cairn
