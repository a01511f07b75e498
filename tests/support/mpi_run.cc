// mpi_run RANKS PROGRAM [ARGUMENT...]: runs a test program in that many ranks, as `cairn train` would start
// them.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/config/mpirun_args.h"

int main(int argc, char** argv) {
  if (argc < 3) return std::fputs("usage: mpi_run RANKS PROGRAM [ARGUMENT...]\n", stderr), 2;
  // The ranks share the machine's cores: one thread each, unless the caller says otherwise.
  setenv("OMP_NUM_THREADS", "1", /*replace=*/0);
  std::vector<std::string> arguments = cairn::MpirunArguments(std::atoi(argv[1]), {argv + 2, argv + argc});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  std::perror("mpi_run: mpirun");
  return 2;
}
