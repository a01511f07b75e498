#include "ckpt/base/this_process.h"

#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <string_view>
#include <utility>

namespace cairn {

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

std::string NodeId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return std::getline(file, id) && !id.empty() ? id : HostName();
}

std::string BatchJob(const std::function<const char*(const char*)>& get_env) {
  constexpr std::pair<const char*, const char*> kSystems[] = {
      {"SLURM_JOB_ID", "Slurm"}, {"PBS_JOBID", "PBS"}, {"LSB_JOBID", "LSF"}, {"FLUX_JOB_ID", "Flux"}};
  for (const auto& [name, system] : kSystems) {
    const char* id = get_env(name);
    if (id == nullptr) continue;
    const int restarts = SlurmRestarts(get_env);
    return fmt::format("{} job {}{}", system, id, restarts > 0 ? fmt::format(", restart {}", restarts) : "");
  }
  return "";
}

int SlurmRestarts(const std::function<const char*(const char*)>& get_env) {
  const char* text = get_env("SLURM_RESTART_COUNT");
  int count = 0;
  if (text != nullptr) std::from_chars(text, text + std::string_view(text).size(), count);
  return count;
}

}  // namespace cairn
