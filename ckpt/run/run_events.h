// What happened to a run: RUN/events, a line of JSON for each start of its training, for the first saves of
// each start and the first that failed, for its end, and for each alarm. FORMAT.md, "Events".
//
// A start without an end was killed. Nothing in a step depends on it, and its steps show neither: a training
// that was resumed continues in its old steps, and retention removes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

inline constexpr std::string_view kEventsName = "events";  // in a run directory

enum class RunEventKind { kStart, kSave, kNotSaved, kEnd, kAlarm, kGaveUpLocal };

struct RunEvent {
  RunEventKind kind = RunEventKind::kStart;
  double time = 0;  // seconds since 1970

  // A start, once it has loaded what it resumed from.
  std::vector<std::string> hosts = {};  // each once
  int64_t ranks = 0;
  bool local = false;     // it saves to its nodes, too
  double seconds = 0;     // a start: since its launch; a save: until it was durable
  int64_t step = -1;      // that it resumed from, or that was saved or not; -1: none
  std::string tier = {};  // that it resumed from: "local", "run" or "load"; empty: none
  double step_time = 0;   // when that step was committed; 0: not known

  // A save to the run directory.
  double stall = 0;  // seconds that the training waited

  // An end that the training knew of.
  std::string how = {};  // "done", "diverged", "failed"
  // A failure's, also of a save; that of an alarm at the save of `step`; and of giving up local steps.
  std::string why = {};
};

// Oldest first; none if the run has no such file. Events of later versions are left out. Errors: Corrupt with
// the file and the number of the line.
Result<std::vector<RunEvent>> ReadEvents(FileSystem& fs, const std::string& run_dir);

// Adds a line, durably; the caller holds the RunLock. The oldest lines go if there are more than a thousand.
Status AppendEvent(FileSystem& fs, const std::string& run_dir, const RunEvent& event);

}  // namespace cairn
