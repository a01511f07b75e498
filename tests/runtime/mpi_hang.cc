// mpi_hang MODE: rank 1 fails in one of several ways, for launch_test.cc. The deadline is one second,
// but not for a process that ends: that is noticed without a deadline, and a busy machine may take longer to
// start.
#include <ATen/ATen.h>
#include <signal.h>

#include <numeric>

#include "ckpt/job/job_ranks.h"
#include "runtime/comm/parallel_dims.h"
#include "tests/support/mpi_main.h"

namespace cairn {
namespace {

void TrainSteps(const ProcessGroup& dp, int64_t first, int64_t last) {
  at::Tensor t = at::ones({1000});
  for (int64_t step = first; step <= last; ++step) {
    Watchdog::SetStep(step);
    dp.AllReduceSum(t, "grad bucket 2");
  }
}

void GoWrong(const std::string& mode, Transport& transport) {
  std::printf("pid %d\n", getpid());
  std::fflush(stdout);
  const bool wrong = transport.rank() == 1;
  const ParallelDims dims = MakeParallelDims({.dp = transport.size()}, transport);
  const ProcessGroup& dp = dims.dp;
  at::Tensor t = at::ones({1000});
  TrainSteps(dp, 1, 17);
  if (mode == "sleep" && wrong) sleep(60);
  if (mode == "stop" && wrong) raise(SIGSTOP);
  if (mode == "die" && wrong) raise(SIGKILL);
  if (mode == "throw" && wrong) TORCH_CHECK(false, "rank 1 found something wrong");
  if (mode == "order" && wrong) Meet(dims.world, "another operation");
  if (mode == "message" && transport.rank() == 0) dp.RecvAsync(t, 1, "activation of micro-batch 3").Wait();
  if (mode == "message" && wrong) sleep(60);
  if (mode == "exit" && wrong) _exit(0);
  TrainSteps(dp, 18, 40);
}

// The same without a group, as torchrun's ranks on CPUs have none.
void GoWrongInAVote(const std::string& mode, Transport& transport) {
  std::printf("pid %d\n", getpid());
  std::fflush(stdout);
  const auto plane = transport.NewControlPlane("votes");
  const auto vote = [&] {
    const Status status = Agree(*plane, OkStatus(), "vote");
    TORCH_CHECK(status.ok(), status.message());
  };
  vote();
  if (mode == "vote-stop" && transport.rank() == 1) raise(SIGSTOP);
  if (mode == "vote-exit" && transport.rank() == 1) _exit(0);
  vote();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const double deadline = mode.ends_with("exit") ? 20 : 1;
  return cairn::MpiMain({.device = mode == "cuda" ? "cuda" : "cpu", .timeout_seconds = deadline},
                        [&](cairn::Transport& transport) {
                          if (mode.starts_with("vote"))
                            cairn::GoWrongInAVote(mode, transport);
                          else
                            cairn::GoWrong(mode, transport);
                        });
}
