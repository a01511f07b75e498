// How code waits for something that nobody signals: it looks again and again, less often the longer it waits.
//
//   for (Backoff wait; wait.elapsed() < patience; wait.Pause())
//     if (IsDone()) return OkStatus();
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace cairn {

// For looks at files: a file server hears from every rank.
struct Pauses {
  std::chrono::nanoseconds first = std::chrono::milliseconds(20);
  std::chrono::nanoseconds longest = std::chrono::milliseconds(500);  // how late a wait may notice its end
  int yields = 0;  // looks before the first pause, after which the thread only gives its core to others
};

// For looks at messages of other ranks. CPU ranks share cores (eight on two is usual in tests), so a rank
// that waits must leave them to the others.
inline constexpr Pauses kMessagePauses{std::chrono::microseconds(10), std::chrono::microseconds(500), 32};

class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Backoff(const Pauses& pauses = {}) : pauses_(pauses) {}

  // Sleeps for a sixteenth of the time since it was made, within its bounds.
  void Pause() {
    if (looks_++ < pauses_.yields) return std::this_thread::yield();
    std::this_thread::sleep_for(
        std::clamp<std::chrono::nanoseconds>((Clock::now() - made_) / 16, pauses_.first, pauses_.longest));
  }
  // There was progress: elapsed() counts from now. The pauses stay as long as they are.
  void Renew() { renewed_ = Clock::now(); }
  Clock::duration elapsed() const { return Clock::now() - renewed_; }

 private:
  Pauses pauses_;
  int64_t looks_ = 0;
  Clock::time_point made_ = Clock::now(), renewed_ = made_;
};

}  // namespace cairn
