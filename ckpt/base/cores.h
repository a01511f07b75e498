// The cores that this process may use, and how its threads are spread over the machine's NUMA nodes.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace cairn {

// How many cores the process may use: by its affinity, and by the CPU quota of its cgroup, at least 1.
int AllowedCores();

// While it lives, binds the calling thread to the cores of one NUMA node that the process may use.
// Consecutive numbers go round the nodes. It does nothing if there is only one node, or if `bind` is false.
class OnNode {
 public:
  OnNode(int number, bool bind);
  ~OnNode();
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;

 private:
  bool bound_ = false;
  cpu_set_t before_;
};

// For each NUMA node below `nodes` (/sys/devices/system/node) the cores of `allowed`; nodes without one are
// left out.
std::vector<cpu_set_t> AllowedNodes(const std::string& nodes, const cpu_set_t& allowed);
// How many cores a cgroup's quota allows ("200000 100000": 2), rounded up; 0 if it has none ("max 100000").
int CoresOfQuota(const std::string& cpu_max);

}  // namespace cairn
