// CheckRoom runs before a benchmark takes anything, so that no benchmark fills a disk or the memory halfway.
// Facts of the machine come from /proc and system calls and precede the figures, which mean little without
// them.

#include "tests/bench/bench_options.h"

#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "ckpt/base/proc_memory.h"
#include "ckpt/io/file_system.h"
#include "tests/bench/bench_disk.h"
#include "tests/bench/bench_memory.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

// The value of a "name : value" line; empty if there is none.
std::string FieldOf(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with(name) && colon != std::string::npos && colon + 2 <= line.size())
      return line.substr(colon + 2);
  }
  return "";
}

// The file system of the longest mount point that `directory` lies under.
std::string FileSystemOf(const std::string& directory) {
  char real[4096];
  if (::realpath(directory.c_str(), real) == nullptr) return "";
  const std::string path = std::string(real) + "/";
  std::ifstream mounts("/proc/mounts");
  std::string best, type;
  for (std::string device, point, kind, rest; mounts >> device >> point >> kind; std::getline(mounts, rest)) {
    const std::string prefix = point.ends_with('/') ? point : point + "/";
    if (path.starts_with(prefix) && prefix.size() >= best.size()) best = prefix, type = kind;
  }
  return type;
}

}  // namespace

Status CheckRoom(const BenchOptions& options, uint64_t disk_bytes, uint64_t memory_bytes) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t disk, FileSystem::Posix().FreeBytes(options.dir));
  const auto human = [](uint64_t bytes) { return HumanBytes(bytes); };
  if (disk < disk_bytes)
    return NoSpace(
        "{}: this takes {} of disk for a while, {} are free; give another --dir or smaller --bytes",
        options.dir, human(disk_bytes), human(disk));
  const uint64_t memory = AvailableMemoryBytes();
  if (memory != 0 && memory < memory_bytes)
    return NoSpace("this takes {} of memory, {} are available; give smaller --bytes", human(memory_bytes),
                   human(memory));
  return OkStatus();
}

Result<ordered_json> MachineFacts(const std::string& directory) {
  utsname kernel{};
  ::uname(&kernel);
  CAIRN_ASSIGN_OR_RETURN(const bool direct, TakesDirect(directory));
  return ordered_json{
      {"cpu", FieldOf("/proc/cpuinfo", "model name")},
      {"cores", std::thread::hardware_concurrency()},
      {"memory_bytes", static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE)},
      {"available_bytes", AvailableMemoryBytes()},
      {"kernel", kernel.release},
      {"directory", directory},
      {"file_system", FileSystemOf(directory)},
      {"o_direct", direct},
      {"io_uring", TakesUring()}};
}

std::function<void(const std::string&)> TellOnTerminal() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [](const std::string& what) { fmt::print(stderr, "\r\033[K{}\r", what); };
}

void PrintReport(const BenchOptions& options, ordered_json facts, const Samples& samples,
                 const std::vector<GoalRatio>& goals) {
  if (options.json) {
    facts["rounds"] = options.rounds;
    facts["series"] = ToJson(samples);
    AddGoals(facts, goals);
    PrintJson(facts);
    return;
  }
  const ordered_json& machine = facts["machine"];
  fmt::print("{}, {} cores, {}; {} on {}{}; median of {} rounds\n\n", machine["cpu"].get<std::string>(),
             machine["cores"].get<int>(), HumanBytes(machine["memory_bytes"].get<double>()),
             machine["directory"].get<std::string>(), machine["file_system"].get<std::string>(),
             machine["o_direct"].get<bool>() ? "" : " (no O_DIRECT)", options.rounds);
  PrintSamples(samples);
  if (goals.empty()) return;
  fmt::print("\n");
  PrintGoals(goals);
}

}  // namespace cairn
