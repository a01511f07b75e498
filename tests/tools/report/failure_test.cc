#include "tools/report/failure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tools/report/log_words.h"

namespace cairn {
namespace {

std::string CauseOf(std::string_view line) {
  const auto failure = FailureIn(line);
  return failure ? failure->cause : "";
}

constexpr std::pair<const char*, const char*> kLines[] = {
    {"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 31.75 GiB total capacity)",
     "out of memory"},
    {"RuntimeError: CUDA error: an illegal memory access was encountered", "illegal memory access"},
    {"RuntimeError: found NaN in local grad norm in backward pass before data-parallel communication "
     "collective. Device: 0, node: n1",
     "NaN in a gradient"},
    {"n1:123:456 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4444> with error 12, opcode 0, "
     "len 0, vendor err 129",
     "network error"},
    {"torch.cuda.OutOfMemoryError: CUDA out of memory.", "out of memory"},
    {"slurmstepd: error: Detected 1 oom-kill event(s) in step 5.batch cgroup. Some of your processes may "
     "have been killed",
     "out of memory"},
    {"MemoryError", "out of memory"},
    {"[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: "
     "WorkNCCL(SeqNum=1)",
     "NCCL timeout"},
    {"RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:1191, unhandled system error, NCCL version "
     "2.10.3",
     "NCCL error"},
    {"RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
     "1800000ms for recv",
     "collective timeout"},
    {"cairn: rank 1: rank 0 on n1 has not come to all_reduce for 60 s; stopping all ranks",
     "collective timeout"},
    {"slurmstepd: error: *** JOB 10763635 ON c0662 CANCELLED AT 2026-10-02T14:02:37 DUE TO TIME LIMIT ***",
     "time limit"},
    {"slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2021-10-02T14:02:37 DUE TO PREEMPTION ***",
     "preempted"},
    {"slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2021-10-02T14:02:37 DUE TO NODE FAILURE, SEE "
     "SLURMCTLD LOG ***",
     "node failure"},
    {"srun: error: Node failure on r7i6n3", "node failure"},
    {"slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2021-10-02T14:02:37 ***", "cancelled"},
    {"srun: error: n1: task 3: Killed", "killed"},
    {"run.sh: line 12: 12345 Killed                  python train.py", "killed"},
    {"srun: error: n1: tasks 0-3: Exited with exit code 137", "killed"},
    {"srun: error: n1: tasks 0-3: Exited with exit code 1", "exit code 1"},
    {"[default3]:AssertionError: Not sure how to proceed, we were given deepspeed configs", "assertion"},
    {"/pytorch/aten/src/ATen/native/cuda/Indexing.cu:702: block: [0,0,0] Assertion `srcIndex < "
     "srcSelectDimSize` failed.",
     "assertion"},
    {"3: ValueError: num_layers must be divisible", "python traceback: ValueError"},
    {"Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
     "python traceback: Exception"},
    {"[default0]:StopIteration", "python traceback: StopIteration"},
    {"1: Traceback (most recent call last):", "python traceback"},
    {"OSError: [Errno 28] No space left on device: '/x'", "disk full"},
    {"Fatal Python error: Segmentation fault", "segmentation fault"},
    {"cuda error: unspecified launch failure", "CUDA error"},
    {"[c10d] socket timeout after 600 s", "collective timeout"},
    {"slurmstepd: job 5 hit its time limit", "time limit"},
};

// Lines without such a word are dropped before they are parsed.
TEST(FailureTest, LogWordsSelectTheseLines) {
  for (const auto& [line, cause] : kLines)
    EXPECT_TRUE(*cause == '\0' || (LineKinds(line) & kTroubleLine) != 0) << line;
}

TEST(FailureTest, FindsCausesByTheirLines) {
  for (const auto& [line, cause] : kLines) EXPECT_EQ(CauseOf(line), cause) << line;
}

TEST(FailureTest, IgnoresLinesThatOnlyMentionFailures) {
  for (const char* line : {
           "  exit_on_missing_checkpoint ...................... False",
           "node1:12:34 [0] NCCL INFO Channel 00 : 0[0] -> 1[0]",
           "[INFO] ErrorHandler: ready",
           "see https://pytorch.org/docs/stable/elastic/errors.html#ValueError: for more",
           "cairn-train: resumed from run/step-00000010 (iteration 10)",
           "cairn-train: --log-json l cannot be written: write l: No space left on device; training "
           "continues and tries again",
           "srun: error: n1: tasks 0-3: Exited with exit code 0",
           "  assert_is_fine: yes",
           "Exception ignored in: <function Pool.__del__ at 0x7f>",
       })
    EXPECT_EQ(CauseOf(line), "") << line;
}

std::string FirstCause(std::initializer_list<const char*> lines) {
  std::optional<Failure> best;
  uint64_t number = 0;
  for (const char* line : lines) TakeFailure(line, ++number, best);
  return best ? best->cause + " " + std::to_string(best->line) : "";
}

TEST(FailureTest, PrefersCausesToConsequences) {
  EXPECT_EQ(FirstCause({"RuntimeError: NCCL error in: x", "Connection closed by peer",
                        "RuntimeError: CUDA out of memory.", "RuntimeError: CUDA out of memory.",
                        "srun: error: n1: task 0: Exited with exit code 1"}),
            "out of memory 3");
  EXPECT_EQ(FirstCause({"slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2021 DUE TO TIME LIMIT ***",
                        "BrokenPipeError: x", "srun: error: n1: task 0: Killed"}),
            "time limit 1")
      << "what follows Slurm's end is its consequence";
  EXPECT_EQ(
      FirstCause({"ValueError: x", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "}),
      "python traceback: ValueError 1");
}

TEST(FailureTest, TheLineIsPrintable) {
  EXPECT_EQ(FailureIn("ValueError: a\tb\x1b[31m\xff\xc2\x85 é")->text, "ValueError: a b?[31m??? é");
  const std::string text = FailureIn("ValueError: " + std::string(400, 'x'))->text;
  EXPECT_EQ(text.size(), 303u);
  EXPECT_TRUE(FailureIn("ValueError:x " + std::string(400, '\xc3'))->text.ends_with("?..."));
  std::string wide = "ValueError: ";
  for (int i = 0; i < 200; ++i) wide += "é";
  EXPECT_TRUE(FailureIn(wide)->text.ends_with("é..."));
  EXPECT_TRUE(FailureIn("1: " + wide)->text.ends_with("é..."))
      << "one byte on, the cut is within a character";
}

TEST(FailureTest, RemovesPrefixesOfLaunchers) {
  for (const std::string prefix : {"", "3: ", " 12: ", "[rank3]: ", "[default0]:", "[1,3]<stderr>:",
                                   "worker-1: [rank0]: ", "[2024-01-01 00:00:00] "})
    EXPECT_EQ(CauseOf(prefix + "ValueError: x"), "python traceback: ValueError") << prefix;
}

}  // namespace
}  // namespace cairn
