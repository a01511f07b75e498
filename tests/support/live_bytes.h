// Bytes of libtorch's CPU allocator that were taken in the scope and are not free yet, and the most that ever
// were. Deterministic, unlike the resident set, if all memory freed in the scope was taken in it. Of the
// thread that made it.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace cairn {

class LiveBytes {
 public:
  int64_t now() const { return counter_->live; }
  int64_t peak() const { return counter_->peak; }

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      live += bytes;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0;
    int64_t peak = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

}  // namespace cairn
