// How `cairn train --nproc-per-node` and the tests start ranks on this host. The list of mpirun's options is
// only here.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

namespace cairn {

// argv of an mpirun that runs `command` in `ranks` ranks; for execvp.
inline std::vector<std::string> MpirunArguments(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> arguments = {
      "mpirun",
      "-q",  // no banners: the rank that failed has reported why
      "-n",
      std::to_string(ranks),
      "--host",
      "localhost:" + std::to_string(ranks),  // this host, even inside a Slurm allocation of several
      "--oversubscribe",                     // more ranks than cores is usual in tests
      "--bind-to",
      "none",  // each rank has several threads
      "--mca",
      "pml",
      "ob1",
      "--mca",
      "btl",
      "self,vader",  // shared memory; no search for networks
      "--mca",
      "btl_vader_single_copy_mechanism",
      "none",  // containers forbid process_vm_readv
  };
  if (geteuid() == 0) arguments.push_back("--allow-run-as-root");
  arguments.insert(arguments.end(), command.begin(), command.end());
  return arguments;
}

}  // namespace cairn
