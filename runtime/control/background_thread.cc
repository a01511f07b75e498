#include "runtime/control/background_thread.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace cairn {
namespace {

constexpr int kNice = 5;

// The kernel intersects the mask with the cores that this container may use, and refuses an empty one: a
// process that has all of them stays where it is.
void LeaveTheTrainersCores() {
  cpu_set_t bound;
  if (sched_getaffinity(getpid(), sizeof(bound), &bound) != 0) return;
  cpu_set_t others;
  CPU_ZERO(&others);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (!CPU_ISSET(core, &bound)) CPU_SET(core, &others);
  (void)sched_setaffinity(0, sizeof(others), &others);
}

}  // namespace

void BecomeBackgroundThread() {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);  // Linux: only of this thread
  LeaveTheTrainersCores();
}

}  // namespace cairn
