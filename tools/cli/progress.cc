#include "tools/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tools/cli/human.h"
#include "tools/cli/printable.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr auto kQuietAtFirst = seconds(1);
constexpr auto kTerminalInterval = milliseconds(200);
constexpr auto kLogInterval = seconds(10);

bool turned_off = false;

}  // namespace

void Progress::TurnOff() { turned_off = true; }
bool Progress::IsOff() { return turned_off; }

Progress::Progress(std::string what, uint64_t total, bool enabled, std::string unit)
    : what_(Printable(std::move(what), Lines::kOne)),
      total_(total),
      enabled_(enabled && !turned_off),
      unit_(std::move(unit)),
      terminal_(isatty(STDERR_FILENO) != 0),
      next_(start_ + (terminal_ ? Clock::duration(kQuietAtFirst) : Clock::duration(kLogInterval))) {}

Progress::~Progress() {
  if (printed_ && terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::Update(uint64_t done) {
  if (!enabled_) return;
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ ? Clock::duration(kTerminalInterval) : Clock::duration(kLogInterval));
  Print(done, std::chrono::duration<double>(now - start_).count());
}

std::string Progress::InUnits(double count) const {
  return unit_.empty()
             ? HumanBytes(count)
             : fmt::format("{:.{}f} {}", count, count < 100 && count != std::floor(count) ? 1 : 0, unit_);
}

void Progress::Print(uint64_t done, double elapsed) {
  const double rate = static_cast<double>(done) / std::max(elapsed, 1e-9);
  const double left = total_ > done ? static_cast<double>(total_ - done) : 0;
  const std::string line =
      fmt::format("{} {} of {} ({:.0f} %), {}/s, {} left", what_, InUnits(static_cast<double>(done)),
                  InUnits(static_cast<double>(total_)), total_ == 0 ? 100.0 : 100.0 * done / total_,
                  InUnits(rate), rate > 0 ? HumanSeconds(left / rate) : std::string("unknown time"));
  std::fputs(terminal_ ? fmt::format("\r{}\033[K", line).c_str() : (line + "\n").c_str(), stderr);
  std::fflush(stderr);
  printed_ = true;
}

}  // namespace cairn
