#include "ckpt/base/cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace cairn {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The numbers of a list of the kernel: "0-3,8".
std::vector<int> NumbersIn(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0;
    const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (read == 1) last = first;
    for (int number = first; read > 0 && number <= last && number < CPU_SETSIZE; ++number)
      numbers.push_back(number);
  }
  return numbers;
}

// The least quota of the process's cgroup (version 2) and of those above it, in cores; 0 without a quota.
int QuotaOfCgroup() {
  const std::string line = FirstLine("/proc/self/cgroup");
  if (!line.starts_with("0::/")) return 0;
  int least = 0;
  for (std::filesystem::path group = line.substr(3);; group = group.parent_path()) {
    const int cores = CoresOfQuota(FirstLine("/sys/fs/cgroup" + group.string() + "/cpu.max"));
    if (cores > 0) least = least == 0 ? cores : std::min(least, cores);
    if (group == group.parent_path()) return least;
  }
}

bool Affinity(cpu_set_t& allowed) { return ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0; }

}  // namespace

int CoresOfQuota(const std::string& cpu_max) {
  std::istringstream words(cpu_max);
  int64_t quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((quota + period - 1) / period, CPU_SETSIZE));
}

int AllowedCores() {
  cpu_set_t allowed;
  const int cores =
      Affinity(allowed) ? CPU_COUNT(&allowed) : static_cast<int>(std::thread::hardware_concurrency());
  const int quota = QuotaOfCgroup();
  return std::max(1, quota > 0 ? std::min(cores, quota) : cores);
}

std::vector<cpu_set_t> AllowedNodes(const std::string& nodes, const cpu_set_t& allowed) {
  std::vector<cpu_set_t> found;
  for (const int node : NumbersIn(FirstLine(nodes + "/online"))) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (const int core : NumbersIn(FirstLine(fmt::format("{}/node{}/cpulist", nodes, node))))
      if (CPU_ISSET(core, &allowed)) CPU_SET(core, &cores);
    if (CPU_COUNT(&cores) > 0) found.push_back(cores);
  }
  return found;
}

OnNode::OnNode(int number, bool bind) {
  if (!bind || !Affinity(before_)) return;
  const std::vector<cpu_set_t> nodes = AllowedNodes("/sys/devices/system/node", before_);
  if (nodes.size() < 2) return;
  bound_ = ::sched_setaffinity(0, sizeof(cpu_set_t), &nodes[static_cast<size_t>(number) % nodes.size()]) == 0;
}

OnNode::~OnNode() {
  if (bound_) (void)::sched_setaffinity(0, sizeof(before_), &before_);
}

}  // namespace cairn
