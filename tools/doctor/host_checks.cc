// Limits, memory and programs of this host.
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "ckpt/base/child.h"
#include "ckpt/base/proc_memory.h"
#include "tools/cli/human.h"
#include "tools/doctor/checks.h"

namespace cairn {
namespace {

constexpr rlim_t kFewDescriptors = 1024, kFewForReshape = 4096, kFewProcesses = 1024;
constexpr uint64_t kSmallSharedMemory = 64 << 20;  // what a container gets by default

std::string LimitText(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit);
}

std::string LimitText(const rlimit& limit) {
  return limit.rlim_cur == limit.rlim_max
             ? LimitText(limit.rlim_cur)
             : fmt::format("{}, can be raised to {}", LimitText(limit.rlim_cur), LimitText(limit.rlim_max));
}

Finding Unknown(std::string name, std::string why, std::string meaning) {
  return NotTold({.name = std::move(name), .found = "", .meaning = std::move(meaning)}, std::move(why));
}

// Reads a limit. Returns a row with the reason if that fails.
std::optional<Finding> ReadLimit(int which, const char* name, rlimit& limit) {
  if (::getrlimit(static_cast<__rlimit_resource_t>(which), &limit) == 0) return std::nullopt;
  return Unknown(name, fmt::format("getrlimit: {}", strerror(errno)), "");
}

bool HasInfiniBand() {
  std::error_code none;
  return std::filesystem::directory_iterator("/sys/class/infiniband", none) !=
         std::filesystem::directory_iterator();
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// "none pmi2 pmix": the words below the heading of `srun --mpi=list`. 23.02 indents lines of the specific
// versions, too.
std::string MpiTypes(const std::string& list) {
  std::string types;
  for (size_t begin = list.find('\n'); begin != list.npos; begin = list.find('\n', begin + 1)) {
    std::string line = list.substr(begin + 1, list.find('\n', begin + 1) - begin - 1);
    if (line.starts_with("srun: ")) line.erase(0, 6);  // older ones
    line.erase(0, line.find_first_not_of(" \t"));
    if (!line.empty() && line.find(' ') == line.npos) types += (types.empty() ? "" : " ") + line;
  }
  return types;
}

}  // namespace

std::optional<Finding> CheckDescriptors(const Examined&) {
  rlimit limit{};
  if (auto unknown = ReadLimit(RLIMIT_NOFILE, "descriptors", limit)) return unknown;
  Finding row{.name = "descriptors",
              .found = LimitText(limit),
              .meaning = "enough open files; reshape and convert raise it"};
  if (limit.rlim_max < kFewForReshape) {
    Worsen(row, "reshape and convert have all files of a target open; many ranks do not fit",
           "raise the hard limit of open files to 65536 (LimitNOFILE= of slurmd, nofile in limits.conf)");
  } else if (limit.rlim_cur < kFewDescriptors) {
    Worsen(row, "a training does not raise it; its sockets to many ranks may not fit",
           fmt::format("put `ulimit -n {}` into the job script", LimitText(limit.rlim_max)));
  }
  return row;
}

std::optional<Finding> CheckLockedMemory(const Examined&) {
  rlimit limit{};
  if (auto unknown = ReadLimit(RLIMIT_MEMLOCK, "locked memory", limit)) return unknown;
  Finding row{.name = "locked memory",
              .found = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : HumanBytes(uint64_t{limit.rlim_cur}),
              .meaning = "saves lock no memory"};
  if (HasInfiniBand() && limit.rlim_cur != RLIM_INFINITY) {
    Worsen(row, "saves lock no memory, but MPI and NCCL over InfiniBand do and may not start",
           "make it unlimited (LimitMEMLOCK= of slurmd, memlock in limits.conf)");
  }
  return row;
}

std::optional<Finding> CheckProcesses(const Examined&) {
  rlimit limit{};
  if (auto unknown = ReadLimit(RLIMIT_NPROC, "processes", limit)) return unknown;
  Finding row{.name = "processes", .found = LimitText(limit), .meaning = "enough threads"};
  if (limit.rlim_cur < kFewProcesses) {
    Worsen(row, "it counts the threads of all your ranks on this host; a save fails if none can start",
           "raise it (LimitNPROC= of slurmd, nproc in limits.conf)");
  }
  return row;
}

std::optional<Finding> CheckMemory(const Examined&) {
  const char* const meaning = "an asynchronous save copies the state of all ranks of this host";
  const uint64_t bytes = AvailableMemoryBytes();
  if (bytes == 0) return Unknown("memory", "/proc/meminfo does not say", meaning);
  return Finding{.name = "memory",
                 .found = fmt::format("{} available", HumanBytes(bytes)),
                 .meaning = meaning,
                 .measured = true};
}

std::optional<Finding> CheckHugePages(const Examined&) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = text.find('['), end = text.find(']');
  if (begin == text.npos || end == text.npos)
    return Unknown("huge pages", path + " does not say", "without them copies of the state are slower");
  Finding row{.name = "huge pages",
              .found = text.substr(begin + 1, end - begin - 1),
              .meaning = "copies of the state and large buffers use them"};
  if (row.found == "never") {
    Worsen(row, "the first copy of the state takes longer", fmt::format("echo madvise > {}", path),
           Severity::kSlower);
  }
  return row;
}

std::optional<Finding> CheckSharedMemory(const Examined&) {
  struct statvfs st;
  Finding row{.name = "/dev/shm", .found = "", .meaning = "ranks of a host see each other's progress in it"};
  if (::statvfs("/dev/shm", &st) != 0) {
    row.found = strerror(errno);
    Worsen(row, "the watchdog of cairn train sees only its own rank", "mount a tmpfs at /dev/shm");
    return row;
  }
  const uint64_t free = uint64_t{st.f_bavail} * st.f_frsize;
  row.found = fmt::format("{} free", HumanBytes(free));
  row.measured = true;
  if (free < kSmallSharedMemory) {
    Worsen(row, "MPI and loaders of data may not start; saves of cairn.torch do not need it",
           "make it larger (--shm-size of a container)");
  }
  return row;
}

std::optional<Finding> CheckSlurm(const Examined&) {
  const Result<std::string> version = Ask({"srun", "--version"});
  const Result<std::string> list = Ask({"srun", "--mpi=list"});
  if (version.status().kind() == StatusKind::kNotFound)
    return Finding{.name = "Slurm", .found = "no srun", .meaning = "start ranks by mpirun or torchrun"};
  for (const auto* answer : {&version, &list})
    if (!answer->ok())
      return Unknown("Slurm", answer->status().message(), "cairn train needs srun --mpi=pmix, or mpirun");
  const std::string types = MpiTypes(*list);
  Finding row{.name = "Slurm",
              .found = fmt::format("{}; MPI types {}", FirstLine(*version), types),
              .meaning = "start ranks of cairn train by srun --mpi=pmix"};
  if (types.find("pmix") == types.npos) {
    Worsen(row, "ranks of cairn train cannot meet under srun",
           "install Slurm's plug-in for PMIx, or start ranks by mpirun");
  }
  return row;
}

std::optional<Finding> CheckMpi(const Examined&) {
  const Result<std::string> version = Ask({"mpirun", "--version"});
  if (version.status().kind() == StatusKind::kNotFound)
    return Finding{.name = "MPI",
                   .found = "no mpirun",
                   .meaning = "cairn train needs it for several ranks; PyTorch does not"};
  if (!version.ok()) return Unknown("MPI", version.status().message(), "");
  return Finding{
      .name = "MPI", .found = FirstLine(*version), .meaning = "starts several ranks of cairn train"};
}

}  // namespace cairn
