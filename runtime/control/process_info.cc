#include "runtime/control/process_info.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

namespace cairn {
namespace {

// The fields of /proc/PID/stat after the command, which may itself hold spaces and parentheses.
std::string StatFields(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(')');
  return end == std::string::npos ? "" : line.substr(end + 1);
}

}  // namespace

uint64_t ProcessStart(int pid) {
  std::istringstream fields(StatFields(pid));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;  // proc(5): starttime is field 22
  uint64_t start = 0;
  return fields >> start ? start : 0;
}

uint64_t PidNamespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

char ProcessState(int pid) {
  std::istringstream fields(StatFields(pid));
  char state = 0;
  return fields >> state ? state : 0;
}

}  // namespace cairn
