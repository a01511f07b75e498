// Failing jobs: within ten seconds of the deadline every rank has stopped with a non-zero status, and one
// line gives the reason. And jobs without MPI. Each test runs programs built beside this one (mpi_hang.cc).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "ckpt/base/exit_code.h"

namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// The one second of mpi_hang's deadline, the promised ten seconds, and the program's own start.
constexpr double kLimitSeconds = 1 + 10 + 20;

std::string Program(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

struct Outcome {
  int status = 0;  // of the shell, which has waited for all ranks
  double seconds = 0;
  std::string output;  // stdout and stderr
};

Outcome RunShell(const std::string& command) {
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  FILE* pipe = popen(("( " + command + " ) 2>&1").c_str(), "r");
  std::array<char, 4096> part;
  while (const size_t bytes = fread(part.data(), 1, part.size(), pipe))
    outcome.output.append(part.data(), bytes);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

Outcome RunMpi(int ranks, const std::string& program_and_arguments) {
  return RunShell(fmt::format("{} {} {}", Program("mpi_run"), ranks, Program(program_and_arguments)));
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::random_device random;
  do {  // below the ports that the kernel hands out
    address.sin_port = htons(static_cast<uint16_t>(10'000 + random() % 20'000));
  } while (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0);
  close(fd);
  return ntohs(address.sin_port);
}

// Two ranks with torchrun's variables; each rank's status is in the output.
Outcome RunTorchrunStyle(const std::string& program_and_arguments) {
  const std::string common =
      fmt::format("MASTER_ADDR=127.0.0.1 MASTER_PORT={} WORLD_SIZE=2 OMP_NUM_THREADS=1 ", FreePort());
  std::string command;
  for (int rank = 0; rank < 2; ++rank)
    command += fmt::format("( {} RANK={} LOCAL_RANK={} {}; echo status of {}: $? ) & ", common, rank, rank,
                           Program(program_and_arguments), rank);
  return RunShell(command + "wait");
}

// A zombie has ended, even if its parent has not asked for its status.
bool Runs(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string line;
  return std::getline(file, line) && line.find(") Z ") == std::string::npos;
}

// mpirun does not wait until the ranks that it kills have ended.
bool Ends(const std::string& pid) {
  for (int tenths = 0; tenths < 100; ++tenths) {
    if (!Runs(pid)) return true;
    usleep(100'000);
  }
  return false;
}

void ExpectNobodyLeft(const std::string& output) {
  const std::regex pid("pid (\\d+)\n");
  int found = 0;
  for (std::sregex_iterator match(output.begin(), output.end(), pid), end; match != end; ++match, ++found)
    EXPECT_TRUE(Ends((*match)[1])) << "still there: " << match->str();
  EXPECT_GT(found, 0);
}

int LinesOf(const std::string& output, const std::string& mark) {
  int count = 0;
  for (size_t at = output.find(mark); at != std::string::npos; at = output.find(mark, at + 1)) ++count;
  return count;
}

// Some rank was in `operation` without `missing`, which is or was `where`.
void ExpectStopped(const Outcome& outcome, const std::string& operation, const std::string& where,
                   const std::string& missing = "rank 1") {
  EXPECT_EQ(outcome.status, cairn::kExitLostPeer);
  EXPECT_LT(outcome.seconds, kLimitSeconds);
  EXPECT_THAT(outcome.output,
              ContainsRegex("cairn: rank [0-9]+ \\(host .*, pid [0-9]+\\) in step [0-9]+: " + operation));
  EXPECT_THAT(outcome.output,
              ContainsRegex("did not complete within 1 s; .*" + missing + " \\(pid [0-9]+, host .*" + where));
  EXPECT_EQ(LinesOf(outcome.output, "cairn: rank"), 1) << outcome.output;
  ExpectNobodyLeft(outcome.output);
}

TEST(WatchdogTest, NamesARankThatSleepsOutsideAnyOperation) {
  const Outcome outcome = RunMpi(4, "mpi_hang sleep");
  ExpectStopped(outcome, "all-reduce of dp/grad bucket 2 \\(operation 18, ranks 0,1,2,3\\)",
                "last seen in step 17, in no operation since it left all-reduce of dp/grad bucket 2");
  EXPECT_THAT(outcome.output, HasSubstr("in step 18: "));
}

TEST(WatchdogTest, NamesAndStopsARankThatASignalStopped) {
  ExpectStopped(RunMpi(4, "mpi_hang stop"), "all-reduce of dp/grad bucket 2", "stopped by a signal");
}

TEST(WatchdogTest, NamesARankInAnotherOperation) {
  // The first to notice names the ranks that are elsewhere: the others name rank 1, or rank 1 the others.
  ExpectStopped(RunMpi(4, "mpi_hang order"), "all-reduce of (dp|world)", "", "rank [0-9]+");
}

TEST(WatchdogTest, AMissingMessageNamesItsSender) {
  ExpectStopped(RunMpi(4, "mpi_hang message"), "(receive of dp/activation of micro-batch 3|all-reduce of dp)",
                "last seen in step 17");
}

TEST(WatchdogTest, AKilledRankEndsTheJob) {
  const Outcome outcome = RunMpi(4, "mpi_hang die");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, kLimitSeconds);
  ExpectNobodyLeft(outcome.output);
}

TEST(WatchdogTest, AnErrorOnOneRankEndsTheJobAndIsPrinted) {
  const Outcome outcome = RunMpi(4, "mpi_hang throw");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, kLimitSeconds);
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 found something wrong"));
  ExpectNobodyLeft(outcome.output);
}

TEST(WatchdogTest, ASuccessfulJobPrintsNothing) {
  const Outcome outcome = RunMpi(4, "mpi_hang none");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("cairn:")));
}

TEST(TorchrunTest, VotesNeedNoMpi) {
  const Outcome outcome = RunTorchrunStyle("mpi_hang vote");
  EXPECT_THAT(outcome.output, HasSubstr("status of 0: 0\n"));
  EXPECT_THAT(outcome.output, HasSubstr("status of 1: 0\n"));
  EXPECT_THAT(outcome.output, HasSubstr("all ranks agree"));
}

TEST(TorchrunTest, RanksOnCpusNeedMpi) {
  const Outcome outcome = RunTorchrunStyle("mpi_hang none");
  EXPECT_THAT(outcome.output, HasSubstr("error: ranks on CPUs communicate through MPI"));
  EXPECT_THAT(outcome.output, HasSubstr("start it with mpirun or srun --mpi=pmix"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("all ranks agree")));
}

TEST(TorchrunTest, NamesAndKillsAStoppedRank) {
  const Outcome outcome = RunTorchrunStyle("mpi_hang vote-stop");
  EXPECT_THAT(outcome.output, HasSubstr("status of 0: 1\n"));
  EXPECT_THAT(outcome.output, HasSubstr("status of 1: 137\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("rank 1 \\(pid [0-9]+, host .*, stopped by a signal\\)"));
  EXPECT_LT(outcome.seconds, kLimitSeconds);
  ExpectNobodyLeft(outcome.output);
}

// Its status 0 does not count as a failure for torchrun; the other rank sees that the process is gone.
TEST(TorchrunTest, OtherRanksNoticeAVanishedRank) {
  const Outcome outcome = RunTorchrunStyle("mpi_hang vote-exit");
  EXPECT_THAT(outcome.output, HasSubstr(fmt::format("status of 0: {}\n", int{cairn::kExitLostPeer})));
  EXPECT_THAT(outcome.output, HasSubstr("its process is gone"));
}

TEST(LaunchTest, RefusesContradictoryVariables) {
  const Outcome outcome = RunShell("RANK=5 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 timeout 60 " +
                                   Program("mpi_hang") + " none");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("error: environment variable RANK='5' is not a number from 0 to 1"));
}

TEST(LaunchTest, AProcessThatCannotReachTheOthersDoesNotStart) {
  const std::string program = "timeout 60 " + Program("mpi_hang") + " none";
  const Outcome srun = RunShell("SLURM_STEP_NUM_TASKS=4 " + program);
  EXPECT_NE(srun.status, 0);
  EXPECT_THAT(srun.output,
              HasSubstr("error: SLURM_STEP_NUM_TASKS=4 shows that srun started several processes"));
  EXPECT_THAT(srun.output, HasSubstr("srun --mpi=pmix"));
  const Outcome torchrun = RunShell("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost " + program);
  EXPECT_NE(torchrun.status, 0);
  EXPECT_THAT(torchrun.output, HasSubstr("WORLD_SIZE=2 shows that torchrun started several processes, but "
                                         "MASTER_PORT is not set"));
  // An mpirun whose processes this Open MPI cannot meet leaves each of them alone.
  const Outcome mpirun = RunShell("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 " + program);
  EXPECT_NE(mpirun.status, 0);
  EXPECT_THAT(mpirun.output, HasSubstr("error: OMPI_COMM_WORLD_SIZE=2 shows"));
  EXPECT_THAT(RunShell("PMIX_RANK=1 " + program).output, HasSubstr("error: PMIX_RANK=1 shows"));
  // mpirun was asked for one process.
  EXPECT_EQ(RunShell(fmt::format("PMI_SIZE=4 {} 1 {} none", Program("mpi_run"), Program("mpi_hang"))).status,
            0);
}

TEST(LaunchTest, CudaWithoutAGpuIsOneClearError) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this machine has a GPU";
  const Outcome outcome = RunShell("timeout 60 " + Program("mpi_hang") + " cuda");
  EXPECT_NE(outcome.status, 0);
  const bool built = std::filesystem::exists(Program("libcairn_nccl.so"));
  EXPECT_THAT(outcome.output, HasSubstr(built ? "error: device cuda: this host has no usable NVIDIA GPU"
                                              : "error: device cuda: cannot load"));
  EXPECT_THAT(outcome.output, HasSubstr("--device cpu"));
  EXPECT_EQ(LinesOf(outcome.output, "\n"), 1) << outcome.output;
}

}  // namespace
