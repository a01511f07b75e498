// The output of a training. A closed pipe or a full disk for stdout or stderr is never an error of the
// training: no function here throws or fails.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

// Prints lines on stdout. A failure to write them is reported on stderr, once.
void Print(std::string_view text);

// A line on stderr under the program's name.
void Say(const std::string& line);

// Reports when an optional output of a training fails and when it works again. Thread-safe.
class OutputHealth {
 public:
  // `name`: what the user called it, "--log-json FILE".
  explicit OutputHealth(std::string name) : name_(std::move(name)) {}

  // How a write went. Reports when the output begins to fail and when it works again, not each time. `lost`:
  // records so far that were given up, 0 if all were kept for later.
  void Note(const Status& status, int64_t lost = 0);
  bool failing() const;

 private:
  const std::string name_;
  mutable std::mutex mutex_;
  bool failing_ = false;
  int64_t lost_ = 0;  // when it last worked
};

}  // namespace cairn
