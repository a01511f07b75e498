// The host, the machine and the batch job of this process.
#pragma once

#include <functional>
#include <string>

namespace cairn {

std::string HostName();

// Names this machine since it booted; containers on it share it. The host name if the kernel has no boot id.
std::string NodeId();

// "Slurm job 16, restart 1"; empty outside of a batch job. `get_env` as std::getenv.
std::string BatchJob(const std::function<const char*(const char*)>& get_env);

// How often Slurm has requeued this job.
int SlurmRestarts(const std::function<const char*(const char*)>& get_env);

}  // namespace cairn
